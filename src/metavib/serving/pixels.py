"""Images as Python users have them (Pillow, numpy, torch), turned into the pixels that a file would give."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from metavib.core.errors import UserError
from metavib.data.decoding.deep_images import DeepValues, layout_of
from metavib.data.decoding.images import Decoded, OtherDepth, deep_grey, shrunk
from metavib.data.decoding.pixel_range import FLOAT, OLDER, SIXTEEN_BIT, PixelRange
from metavib.data.decoding.shrinking import BILINEAR, squashed

_CHANNELS = (1, 3, 4)


def one_by_one(images: Any) -> Iterator[Any]:
    """The images of a batch or of an iterable; one image alone comes as itself."""
    if isinstance(images, str | Path | Image.Image):
        yield images
    elif isinstance(images, Tensor | np.ndarray):
        if images.ndim == 4:
            yield from images
        else:
            yield images
    elif isinstance(images, Iterable):
        yield from images
    else:
        raise UserError(
            f"{type(images).__name__} is not an image: give Pillow images, arrays, tensors or paths."
        )


def decode_given(image: Any, size: int, pixel_range: PixelRange, interpolation: str = BILINEAR) -> Decoded:
    """uint8 [3, size, size] of a Pillow image, an array or a tensor of any size, as a file of it would give.

    Bytes and numbers 0..1 are scaled already. Numbers of the kind that the model's deep files hold are scaled as
    those are.
    """
    if isinstance(image, Image.Image):
        return _decode_opened(image, size, pixel_range, interpolation)
    if isinstance(image, Tensor):
        # Torch's habit is channels first, numpy's and Pillow's channels last; it matters for 3 x 3 images only.
        values = _channels_last(image.detach().cpu().numpy(), first=True)
    elif isinstance(image, np.ndarray):
        values = _channels_last(image, first=False)
    else:
        raise UserError(
            f"{type(image).__name__} is not an image: give Pillow images, arrays, tensors or paths."
        )
    kinds = "f" if pixel_range.depth == FLOAT else "iu"
    if pixel_range.deep and values.dtype != np.uint8 and values.dtype.kind in kinds:
        return shrunk(_without_alpha(values), size, pixel_range, interpolation)
    return Decoded(squashed(Image.fromarray(_in_bytes(values)), size, interpolation), clipped=False)


def _decode_opened(image: Image.Image, size: int, pixel_range: PixelRange, interpolation: str) -> Decoded:
    """An image that the caller has opened: its depth must be that of the model's files."""
    layout = layout_of(image)
    # Pillow keeps whole numbers of 16 bits as numbers of 32, once they are negative or computed with.
    same = layout.depth == pixel_range.depth or (image.mode == "I" and pixel_range.depth == SIXTEEN_BIT)
    if pixel_range != OLDER and not same:
        raise OtherDepth("the image", layout.depth, pixel_range)
    if not pixel_range.deep:
        return Decoded(squashed(image, size, interpolation), clipped=False)
    if layout.colour:
        raise UserError(
            "Pillow keeps half of the bits of a 16-bit image in colour: give the path of its file."
        )
    return shrunk(deep_grey(image, layout), size, pixel_range, interpolation)


def _without_alpha(values: np.ndarray) -> DeepValues:
    """Colours, and beside them how opaque they are: of that, all bits are in use."""
    if values.ndim == 2 or values.shape[2] < 4:
        return DeepValues(values)
    largest = 1.0 if values.dtype.kind == "f" else float(np.iinfo(values.dtype).max)
    return DeepValues(values[:, :, :3], PixelRange("", 0.0, largest).scaled(values[:, :, 3]).pixels)


def _channels_last(values: np.ndarray, *, first: bool) -> np.ndarray:
    """[height, width] or [height, width, channels]."""
    if 0 in values.shape or values.ndim not in (2, 3):
        raise UserError(
            f"an array of shape {list(values.shape)} is not an image: give [height, width], "
            "[height, width, channels] or [channels, height, width]."
        )
    if values.ndim == 2:
        return values
    at_the_front, at_the_end = values.shape[0] in _CHANNELS, values.shape[2] in _CHANNELS
    if not (at_the_front or at_the_end):
        raise UserError(
            f"an array of shape {list(values.shape)} has no axis of 1, 3 or 4 channels. Give several grey images "
            "as a list."
        )
    if at_the_front and (first or not at_the_end):
        values = values.transpose(1, 2, 0)
    return values[:, :, 0] if values.shape[2] == 1 else values


def _in_bytes(values: np.ndarray) -> np.ndarray:
    """Bytes 0..255, or numbers 0..1 (or True and False), as bytes."""
    if values.dtype == np.uint8:
        return np.ascontiguousarray(values)
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * 255
    if not np.issubdtype(values.dtype, np.number) or np.iscomplexobj(values):
        raise UserError(f"an array of {values.dtype} is not an image: give uint8 0..255 or float 0..1.")
    low, high = float(values.min()), float(values.max())
    largest = 1.0 if np.issubdtype(values.dtype, np.floating) else 255.0
    if not (low >= 0.0 and high <= largest):  # also where they are NaN
        raise UserError(
            f"an array of {values.dtype} from {low:g} to {high:g} is not an image: give uint8 0..255 or "
            "float 0..1."
        )
    return np.rint(values.astype(np.float64) * (255.0 / largest)).astype(np.uint8)
