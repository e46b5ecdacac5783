"""Deep images in Pillow: how deep a file is, and its values with all their bits.

Pillow keeps the bits of grey images. Of 16-bit colour it keeps the high byte of each value only. The low byte is
what it takes for the high one when it is told that the bytes are in the other order.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageFile

from metavib.core.shapes import Num, UInt8
from metavib.data.decoding.pixel_range import (
    EIGHT_BIT,
    FLOAT,
    SIXTEEN_BIT,
    THIRTY_TWO_BIT,
    Extremes,
    PixelRange,
)

_BITS_PER_SAMPLE, _PLANAR_CONFIGURATION = 258, 284  # tags of a TIFF file
_SEPARATE_PLANES = 2
_OTHER_ORDER = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}
_GREY_WITH_ALPHA = "LA;16B"
PILLOW_MODES = {EIGHT_BIT: "L", SIXTEEN_BIT: "I;16", THIRTY_TWO_BIT: "I", FLOAT: "F"}  # of grey images


class Layout(NamedTuple):
    """How the values of a file lie in it. Pillow forgets it when the pixels are loaded."""

    depth: str
    raw: str  # Pillow's name of it
    colour: bool


class DeepValues(NamedTuple):
    """The values of a deep image, and how opaque it is."""

    values: Num[np.ndarray, "height width *channels"]
    alpha: UInt8[np.ndarray, "height width"] | None = None

    @property
    def extremes(self) -> Extremes:
        """Of all finite values."""
        finite = self.values
        if finite.dtype.kind == "f":
            finite = finite[np.isfinite(finite)]
        return Extremes(finite.min().item(), finite.max().item()) if finite.size else Extremes(0, 0)

    def image(self, pixel_range: PixelRange) -> tuple[Image.Image, bool]:
        """An 8-bit image, scaled by the range, and whether values were clipped."""
        pixels, clipped = pixel_range.scaled(self.values)
        if pixels.ndim == 3 and pixels.shape[2] == 4:
            return Image.frombytes("CMYK", pixels.shape[1::-1], pixels.tobytes()), clipped
        image = Image.fromarray(pixels)
        if self.alpha is not None:
            image.putalpha(Image.fromarray(self.alpha))
        return image, clipped


def layout_of(image: Image.Image) -> Layout:
    """The layout of an image that is opened and not loaded; of any other, what its mode says."""
    tiles = image.tile if isinstance(image, ImageFile.ImageFile) else []
    arguments = tiles[0][3] if tiles else ""
    raw = arguments if isinstance(arguments, str) else str(arguments[0]) if arguments else ""
    if image.mode == "F":
        return Layout(FLOAT, raw, colour=False)
    if image.mode.startswith("I"):
        sixteen = image.mode != "I" or ";16" in raw
        return Layout(SIXTEEN_BIT if sixteen else THIRTY_TWO_BIT, raw, colour=False)
    deep = raw.endswith((";16B", ";16L", ";16N"))
    if tiles and not deep and (tags := getattr(image, "tag_v2", None)):
        deep = bool(np.max(tags.get(_BITS_PER_SAMPLE, 8)) > 8)
    return Layout(SIXTEEN_BIT if deep else EIGHT_BIT, raw, colour=True)


def why_unreadable(image: Image.Image, layout: Layout) -> str:
    """Why the low bytes of a 16-bit colour image cannot be had from Pillow; "" where they can."""
    if getattr(image, "tag_v2", {}).get(_PLANAR_CONFIGURATION) == _SEPARATE_PLANES:
        return "is 16-bit colour in separate planes, which is not read; save it with its channels together"
    if layout.raw.startswith("RGBa"):
        return "is 16-bit colour multiplied by its alpha, which is not read; save it without transparency"
    return ""


def turn_to_low_bytes(image: ImageFile.ImageFile, layout: Layout) -> None:
    """Let a 16-bit colour image that is not loaded yet give the low byte of each value, not the high one."""
    # Of grey with alpha Pillow knows one order only; as RGBA its four bytes come as they are.
    raw = "RGBA" if layout.raw == _GREY_WITH_ALPHA else layout.raw[:-1] + _OTHER_ORDER[layout.raw[-1]]
    image.tile = [
        tile._replace(args=raw if isinstance(tile.args, str) else (raw, *(tile.args or ())[1:]))
        for tile in image.tile
    ]


def grey_values(values: np.ndarray, layout: Layout) -> DeepValues:
    """All bits of a loaded grey image."""
    if layout.raw == "I;32N":  # Pillow has signed numbers only
        return DeepValues(values.view(np.uint32))
    return DeepValues(values.astype(values.dtype.newbyteorder("="), copy=False))


def colour_values(high_bytes: np.ndarray, low_bytes: np.ndarray, layout: Layout, mode: str) -> DeepValues:
    """All bits of a loaded image in colour, of which `turn_to_low_bytes` gave the second half."""
    if layout.raw == _GREY_WITH_ALPHA:
        return DeepValues(_sixteen_bits(high_bytes[..., 0], low_bytes[..., 1]), high_bytes[..., 3])
    if mode == "RGBA":
        return DeepValues(_sixteen_bits(high_bytes[..., :3], low_bytes[..., :3]), high_bytes[..., 3])
    return DeepValues(_sixteen_bits(high_bytes, low_bytes))


def _sixteen_bits(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    joined = high.astype(np.uint16)
    joined <<= 8  # in place: of a large image every copy counts
    joined |= low
    return joined
