"""An opened image as a network takes it: in RGB, upright, and squashed to its size."""

from __future__ import annotations

import numpy as np
from PIL import ExifTags, Image, ImageFile

from metavib.core.shapes import UInt8
from metavib.data.decoding.tiff_directory import sound_metadata

BILINEAR = "bilinear"
_BAND = 1 << 20  # pixels that are worked on at a time, where an image is large
_LARGE = 1 << 22  # pixels

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ROWS_FROM_BELOW = {Image.Transpose.ROTATE_180, Image.Transpose.FLIP_TOP_BOTTOM}
_COLUMNS_FROM_LEFT = {Image.Transpose.TRANSPOSE, Image.Transpose.ROTATE_270}
_COLUMNS_FROM_RIGHT = {Image.Transpose.TRANSVERSE, Image.Transpose.ROTATE_90}

_METADATA = {"exif", "xmp", "Raw profile type exif", "XML:com.adobe.xmp"}  # where an orientation may stand


def squashed(
    image: Image.Image, size: int, interpolation: str = BILINEAR
) -> UInt8[np.ndarray, "3 {size} {size}"]:
    """An opened image in RGB, upright, squashed to size x size (with antialiasing)."""
    resampling = Image.Resampling[interpolation.upper()]
    # A deep image is scaled by the range of all its values, so that it is not made in bands.
    in_bands = image.width * image.height > _LARGE and not _is_deep(image.mode)
    shown = _narrowed(image, size, resampling) if in_bands else _in_colour(upright(image))
    resized = shown.resize((size, size), resampling)
    return np.ascontiguousarray(np.asarray(resized).transpose(2, 0, 1))


def squashed_grey(
    image: Image.Image, size: int, interpolation: str = BILINEAR
) -> UInt8[np.ndarray, "1 {size} {size}"] | None:
    """A grey image of 8 bits, upright, squashed to size x size, in one channel; None for all others.

    It is what `with_channels` makes of the three that are alike, in a third of the time.
    """
    if image.mode != "L" or image.width * image.height > _LARGE or image.has_transparency_data:
        return None
    resampling = Image.Resampling[interpolation.upper()]
    return np.array(upright(image).resize((size, size), resampling))[None]


def _narrowed(image: Image.Image, size: int, resampling: Image.Resampling) -> Image.Image:
    """In RGB, upright, and as wide as asked for; made band by band, so that no copy of the whole is made.

    Pillow shrinks rows before it shrinks columns, so that the bits are those of the whole image at once.
    """
    (wide, high), turn = image.size, _turn_of(image)
    down = wide if turn in _COLUMNS_FROM_LEFT | _COLUMNS_FROM_RIGHT else high
    narrow = Image.new("RGB", (size, down))
    step = max(1, _BAND * down // (wide * high))
    for top in range(0, down, step):
        bottom = min(top + step, down)
        box = (0, top, wide, bottom)
        if turn in _ROWS_FROM_BELOW:
            box = (0, high - bottom, wide, high - top)
        elif turn in _COLUMNS_FROM_LEFT:
            box = (top, 0, bottom, high)
        elif turn in _COLUMNS_FROM_RIGHT:
            box = (wide - bottom, 0, wide - top, high)
        band = _in_colour(_turned(image.crop(box), turn))
        narrow.paste(band.resize((size, bottom - top), resampling), (0, top))
    return narrow


def upright(image: Image.Image) -> Image.Image:
    """Turned as its metadata says."""
    return _turned(image, _turn_of(image))


def _turn_of(image: Image.Image) -> Image.Transpose | None:
    """The turn that EXIF or XMP asks for; broken metadata must not cost an image whose pixels are fine."""
    if isinstance(image, ImageFile.ImageFile) and not (
        _METADATA & image.info.keys() or hasattr(image, "tag_v2")
    ):
        return None
    try:
        exif = image.info.get("exif")
        if exif is None and "Raw profile type exif" in image.info:  # as ImageMagick wrote it into PNG
            exif = bytes.fromhex("".join(image.info["Raw profile type exif"].split("\n")[3:]))
        if exif is not None and not sound_metadata(exif):
            return None
        return _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:
        return None


def _turned(image: Image.Image, turn: Image.Transpose | None) -> Image.Image:
    return image if turn is None else image.transpose(turn)


def _is_deep(mode: str) -> bool:
    return mode.startswith("I") or mode == "F"


def _in_colour(image: Image.Image) -> Image.Image:
    """RGB, with what is transparent over white."""
    if _is_deep(image.mode):
        image = _eight_bit(image)
    elif image.has_transparency_data:
        layer = image if image.mode == "RGBA" else image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return image.convert("RGB")


def _eight_bit(image: Image.Image) -> Image.Image:
    """Deep grey values as bytes: from 0..1 (float) or 0..65535 (integer), else from their own range."""
    values = np.array(image, dtype=np.float32)
    np.nan_to_num(values, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
    low, high = 0.0, 1.0 if image.mode == "F" else 65535.0
    if values.min() < low or values.max() > high:
        low, high = float(values.min()), float(values.max())
    with np.errstate(over="ignore"):
        values -= low
    values *= 255.0 / (high - low) if high > low else 0.0
    return Image.fromarray(np.rint(values).clip(0, 255).astype(np.uint8))
