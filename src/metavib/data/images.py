"""The one place that opens an image: limits, formats, orientation and colour are decided here."""

from __future__ import annotations

import io
import itertools
import os
import stat
import threading
import warnings
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import ExifTags, Image, ImageFile, UnidentifiedImageError

from metavib.data.dataset import digest_of
from metavib.data.libtiff import silence_libtiff
from metavib.data.screening import MAX_PIXEL_SCANS, Screened, screened
from metavib.data.tiff_directory import TooMuch, sound_metadata
from metavib.errors import UserError
from metavib.memory import give_back
from metavib.shapes import UInt8

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
MAX_PIXELS = 100_000_000
MAX_SIDE = 65_500  # as of JPEG; a row costs memory by itself
MAX_BYTES = 200_000_000
MAX_MEMORY = 400_000_000  # bytes that one image takes while it is decoded, beside its file
_AHEAD = 256  # files decoded before the first of them is taken, at most
_AHEAD_BYTES = 64 << 20  # what they may take

_BAND = 1 << 20  # pixels that are worked on at a time, where an image is large
_LARGE = 1 << 22  # pixels
_COPIES = 4  # of a file, at most, that screening, Pillow and its decoder hold
_WORTH_GIVING_BACK = 64 << 20  # bytes

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

_pillow_limit = threading.Lock()


class BadImage(UserError):
    """An image that cannot be used, by name and reason."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")


class TooLarge(BadImage):
    """An image that takes more bytes, pixels, time or memory than one may."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, f"is too large ({reason})")


class Row(NamedTuple):
    """One file of many: its pixels, or what is wrong with it."""

    name: str
    digest: str  # of the file's bytes
    pixels: UInt8[np.ndarray, "3 size size"] | None
    problem: str


def read(path: Path, name: str) -> bytes:
    """The bytes of an image file."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
            raise BadImage(name, "is not a regular file")
        _check_length(status.st_size, name)
        return path.read_bytes()
    except OSError as error:
        raise BadImage(name, f"cannot be read ({error.strerror})") from error
    except ValueError as error:
        if isinstance(error, BadImage):
            raise
        raise BadImage(name, "has a name that no file can have") from error  # with a zero byte in it


def describe(data: bytes, name: str) -> tuple[int, int, str]:
    """Width, height and Pillow mode, from the header alone."""
    with _opened(data, name) as image:
        return image.width, image.height, image.mode


def decode(data: bytes, name: str, size: int) -> UInt8[np.ndarray, "3 {size} {size}"]:
    """The image in RGB, upright, squashed to size x size (bilinear with antialiasing)."""
    with _opened(data, name, size) as image:
        image.load()
        return squashed(image, size)


def squashed(image: Image.Image, size: int) -> UInt8[np.ndarray, "3 {size} {size}"]:
    """An opened image in RGB, upright, squashed to size x size (bilinear with antialiasing)."""
    if image.width * image.height > _LARGE and not _is_deep(
        image.mode
    ):  # those need the range of all their values
        upright = _narrowed(image, size)
    else:
        upright = _in_colour(_upright(image))
    resized = upright.resize((size, size), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(resized).transpose(2, 0, 1))


def _narrowed(image: Image.Image, size: int) -> Image.Image:
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
        narrow.paste(band.resize((size, bottom - top), Image.Resampling.BILINEAR), (0, top))
    return narrow


def decode_all(root: Path, names: Sequence[str], size: int) -> Generator[Row]:
    """The files in their order, decoded by all cores."""

    def attempt(name: str) -> Row:
        try:
            data = read(root / name, name)
            return Row(name, digest_of(data), decode(data, name, size), "")
        except BadImage as bad:
            return Row(name, "", None, str(bad))

    remaining = iter(names)
    # Pillow releases the GIL while it decodes. Its warnings are about metadata that is not used here.
    with ThreadPoolExecutor(os.cpu_count()) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ahead = max(2 * (os.cpu_count() or 1), min(_AHEAD, _AHEAD_BYTES // (3 * size * size)))
        while batch := list(itertools.islice(remaining, ahead)):
            yield from pool.map(attempt, batch)


@contextmanager
def _opened(data: bytes, name: str, size: int | None = None) -> Iterator[Image.Image]:
    """The image with its structure and header checked; whatever is raised in the block becomes a `BadImage`.

    With a size, it is to be decoded: of a JPEG detail may be left out, down to twice that size. At the end of
    the block its pixels are freed.
    """
    _check_length(len(data), name)
    try:
        file = screened(data)
        if file is None:
            raise UnidentifiedImageError(name)
        image = _open_header(file)
        needed = file.bytes_per_pixel * image.width * image.height
        try:
            _check_size(image, file.scans, name)
            if size is not None:
                image.draft(None, (2 * size, 2 * size))
            if size is not None or file.kind != "JPEG":
                needed += _bytes_per_pixel(image.mode) * image.width * image.height
            if needed > MAX_MEMORY:
                raise TooLarge(name, f"{needed:,.0f} bytes to decode it; the limit is {MAX_MEMORY:,}")
            if file.kind == "TIFF":
                silence_libtiff()
            yield image
        finally:
            # The pixels and the decoder's memory go now, though frames of an exception may still hold the image.
            vars(image).clear()
            del file
            held = min(needed, MAX_MEMORY) + _COPIES * len(data)
            if size is not None and held > _WORTH_GIVING_BACK:
                give_back()
    except BadImage:
        raise
    except TooMuch as error:
        raise TooLarge(name, str(error)) from error
    except UnidentifiedImageError as error:
        raise BadImage(
            name, "is not a JPEG, PNG, WebP, BMP or TIFF image, or its header is damaged"
        ) from error
    except (
        Exception
    ) as error:  # on hostile bytes Pillow raises nearly anything, MemoryError and struct.error too
        message = " ".join(str(error).split()) or type(error).__name__
        raise BadImage(name, f"is damaged or truncated ({message})") from error


def _check_size(image: Image.Image, scans: int, name: str) -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise TooLarge(name, f"{width:,} x {height:,} pixels; the limit is {MAX_PIXELS:,} in all")
    if width > MAX_SIDE or height > MAX_SIDE:
        raise TooLarge(name, f"{width:,} x {height:,} pixels; the limit of a side is {MAX_SIDE:,}")
    if width * height * scans > MAX_PIXEL_SCANS:
        limit = f"the limit of both together is {MAX_PIXEL_SCANS:,}"
        raise TooLarge(name, f"{width:,} x {height:,} pixels in {scans:,} scans; {limit}")


def _open_header(file: Screened) -> Image.Image:
    """Pillow's own limit is a warning, or an error that does not name the size: ours replaces it.

    It is a global of Pillow's, so it is put back at once, and one thread at a time opens a header.
    """
    with _pillow_limit:
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return Image.open(io.BytesIO(file.content), formats=(file.kind,))
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def _check_length(count: int, name: str) -> None:
    if count == 0:
        raise BadImage(name, "is empty")
    if count > MAX_BYTES:
        raise TooLarge(name, f"{count:,} bytes; the limit is {MAX_BYTES:,}")


def _upright(image: Image.Image) -> Image.Image:
    """Turned as its metadata says."""
    return _turned(image, _turn_of(image))


def _turn_of(image: Image.Image) -> Image.Transpose | None:
    """What EXIF or XMP asks for; broken metadata must not cost an image whose pixels are fine."""
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


def _bytes_per_pixel(mode: str) -> int:
    """That an image takes until it is in bytes."""
    if _is_deep(mode):
        return 20  # as it is and as floats, which are scaled
    return 1 if mode in ("1", "L", "P") else 4


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
