"""Images that a program has as pixels already: one array of them in numpy's own form, `.npy`.

Only bytes are taken, and only the header is interpreted: no pickle, no copy. A header is a Python literal; its
three values are looked for as text, so that nothing that a client wrote is evaluated.
"""

import functools
import math
import mmap
import re
from http import HTTPStatus

import numpy as np

from metavib.data.decoding.images import MAX_SIDE
from metavib.serving.http.limits import Limits
from metavib.serving.http.refusals import Refusal, too_large

TYPE = "application/x-npy"
_MAGIC = b"\x93NUMPY"
_LENGTH = {b"\x01\0": slice(8, 10), b"\x02\0": slice(8, 12)}  # where a version says how long its header is
_KIND = re.compile(rb"""['"]descr['"] *: *['"]([<>|=]?[biufcmMOSUV][0-9]{0,3})['"]""")
_ORDER = re.compile(rb"""['"]fortran_order['"] *: *(True|False)\b""")
_SHAPE = re.compile(rb"""['"]shape['"] *: *\(([-0-9, ]{0,200})\)""")
_LONGEST_SIDE = 15  # digits
_LONGEST = 10_000  # bytes of a header; numpy takes no longer one
_WHAT_TO_SEND = (
    "Send uint8 [count, height, width], [count, height, width, 3] or [count, 3, height, width], "
    "as numpy.save writes it."
)


def images_of(content: bytes | mmap.mmap, limits: Limits) -> np.ndarray:
    """The images of an `.npy` file, as a view of its bytes."""
    try:
        length = _LENGTH[content[6:8]]
        start = length.stop + int.from_bytes(content[length], "little")
        shape, by_columns, kind = _header(content[: min(start, _LONGEST)])
    except (KeyError, ValueError, TypeError):  # the last one by a type that numpy does not know
        raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body is no .npy file", _WHAT_TO_SEND) from None
    if kind != np.uint8 or by_columns or len(shape) not in (3, 4) or min(shape) < 1:
        order = " in Fortran's order" if by_columns else ""
        said = f"an array of {kind} {list(shape)}{order} is not a list of images"
        raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, said[:200], _WHAT_TO_SEND)
    if shape[0] > limits.images:
        raise too_large(f"the array holds more than {limits.images} images", "Send them in several requests.")
    if math.prod(shape[1:]) > limits.image_bytes:
        raise too_large(f"an image has more than {limits.image_bytes:,} bytes", "Make the images smaller.")
    if max(shape[1:]) > MAX_SIDE:
        raise too_large(f"an image has a side of more than {MAX_SIDE:,} pixels", "Make the images smaller.")
    if math.prod(sorted(shape[1:])[-2:]) > limits.image_pixels:
        raise too_large(f"an image has more than {limits.image_pixels:,} pixels", "Make the images smaller.")
    values = math.prod(shape)  # of Python's numbers, which cannot overflow
    if len(content) - start != values:
        held = f"the array should have {values:,} bytes, but {len(content) - start:,} came"
        raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, held, _WHAT_TO_SEND)
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


@functools.lru_cache(64)  # clients send the same shape again and again, and to read one takes 20 microseconds
def _header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    kind, by_columns, shape = (found.search(head) for found in (_KIND, _ORDER, _SHAPE))
    if not (head.startswith(_MAGIC) and kind and by_columns and shape):
        raise ValueError("no header")
    sides = [side.strip() for side in shape[1].removesuffix(b",").split(b",")]
    if max(map(len, sides)) > _LONGEST_SIDE:
        raise ValueError("no number of pixels")
    return tuple(map(int, sides)), by_columns[1] == b"True", np.dtype(kind[1].decode("ascii"))
