"""Images that a program has as pixels already: one array of them in numpy's own form, `.npy`.

Only bytes are taken, and only the header is interpreted: no pickle, no copy.
"""

from __future__ import annotations

import functools
import io
import math
from http import HTTPStatus

import numpy as np
from numpy.lib import format as npy

from metavib.serving.limits import Limits
from metavib.serving.refusals import Refusal, too_large

TYPE = "application/x-npy"
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_LENGTH = {1: slice(8, 10), 2: slice(8, 12)}  # where each version says how long its header is
_LONGEST = 10_000  # bytes of a header; numpy takes no longer one
_WHAT_TO_SEND = (
    "Send uint8 [count, height, width], [count, height, width, 3] or [count, 3, height, width], "
    "as numpy.save writes it."
)


def images_of(content: bytes, limits: Limits) -> np.ndarray:
    """The images of an `.npy` file, as a view of its bytes."""
    try:
        length = _LENGTH[content[6]]
        start = length.stop + int.from_bytes(content[length], "little")
        shape, by_columns, kind = _header(content[: min(start, _LONGEST)])
    except Exception:  # a header is a Python literal, and on hostile bytes numpy raises nearly anything
        raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body is no .npy file", _WHAT_TO_SEND) from None
    if kind != np.uint8 or by_columns or len(shape) not in (3, 4) or min(shape) < 1:
        order = " in Fortran's order" if by_columns else ""
        said = f"an array of {kind} {list(shape)}{order} is no list of images"
        raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, said[:200], _WHAT_TO_SEND)
    if shape[0] > limits.images:
        raise too_large(f"the array holds more than {limits.images} images", "Send them in several requests.")
    if math.prod(shape[1:]) > limits.image_bytes:
        raise too_large(f"an image has more than {limits.image_bytes:,} bytes", "Make the images smaller.")
    if math.prod(sorted(shape[1:])[-2:]) > limits.image_pixels:
        raise too_large(f"an image has more than {limits.image_pixels:,} pixels", "Make the images smaller.")
    values = math.prod(shape)  # of Python's numbers, which cannot overflow
    if len(content) - start != values:
        held = f"the array should have {values:,} bytes, but {len(content) - start:,} came"
        raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, held, _WHAT_TO_SEND)
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


@functools.lru_cache(64)  # clients send the same shape again and again, and to read one takes 20 microseconds
def _header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    stream = io.BytesIO(head)
    return _HEADERS[npy.read_magic(stream)](stream)
