"""The one place that opens an image: limits, formats, orientation and colour are decided here."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import itertools
import os
import threading
import warnings
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageFile, UnidentifiedImageError

from metavib.core import untrusted
from metavib.core.errors import UserError
from metavib.core.foreign_text import visible
from metavib.core.memory import give_back
from metavib.core.shapes import UInt8
from metavib.data.dataset import digest_of
from metavib.data.decoding.deep_images import (
    DeepValues,
    Layout,
    colour_values,
    grey_values,
    layout_of,
    turn_to_low_bytes,
    why_unreadable,
)
from metavib.data.decoding.pixel_range import EIGHT_BIT, OLDER, Extremes, PixelRange
from metavib.data.decoding.screening import MAX_PIXEL_SCANS, Screened, screened
from metavib.data.decoding.shrinking import BILINEAR, squashed, squashed_grey, upright
from metavib.data.decoding.tiff_directory import TooMuch

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
MAX_PIXELS = 100_000_000
MAX_SIDE = 65_500  # as of JPEG; a row costs memory by itself
MAX_BYTES = 200_000_000
MAX_MEMORY = 400_000_000  # bytes that one image takes while it is decoded, beside its file
_AHEAD = 256  # files decoded before the first of them is taken, at most
_AHEAD_BYTES = 64 << 20  # what they may take

_PNG_SIZE = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"  # before width and height
_SHORT = 1 << 20  # bytes that are quickly looked through
_COPIES = 4  # of a file, at most, that screening, Pillow and its decoder hold
_WORTH_GIVING_BACK = 64 << 20  # bytes

_pillow_limit = threading.Lock()


class BadImage(UserError):
    """An image that cannot be used, by name and reason."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{visible(name)}: {reason}")


class OtherDepth(BadImage):
    """A file of another bit depth than the images that a model learns from, or learnt from."""

    def __init__(self, name: str, depth: str, wanted: PixelRange) -> None:
        super().__init__(name, f"is {depth}, but the model takes {wanted.in_words}; convert it to match")
        self.name, self.depth = name, depth


class Decoded(NamedTuple):
    """An image as a network takes it, and whether values beyond the range were clipped."""

    pixels: UInt8[np.ndarray, "channels size size"]
    clipped: bool


class Scanned(NamedTuple):
    """Facts about an image file, and the extremes of its values where they are more than bytes."""

    width: int
    height: int
    mode: str
    depth: str
    extremes: Extremes


class TooLarge(BadImage):
    """An image that takes more bytes, pixels, time or memory than one may."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, f"is too large ({reason})")


class DecodedImage(NamedTuple):
    """One file of many: its pixels, or what is wrong with it."""

    name: str
    digest: str  # of the file's bytes
    pixels: UInt8[np.ndarray, "3 size size"] | None
    problem: str
    clipped: bool = False


def image_bytes(path: Path, name: str) -> bytes:
    """The bytes of an image file."""
    try:
        data = untrusted.read(path, MAX_BYTES)
        _check_length(len(data), name)
        return data
    except untrusted.DoorError as error:
        raise BadImage(name, f"is {error}") from error
    except OSError as error:
        raise BadImage(name, f"cannot be read ({error.strerror})") from error
    except ValueError as error:
        if isinstance(error, BadImage):
            raise
        raise BadImage(name, "has a name that no file can have") from error  # with a zero byte in it


def size_and_mode(data: bytes, name: str) -> tuple[int, int, str]:
    """Width, height and Pillow mode, from the header alone."""
    with _opened(data, name) as image:
        return image.width, image.height, image.mode


def surely_within(data: bytes, pixels: int) -> bool:
    """Whether the first bytes alone say that an image has so many pixels at most; PNG has its size there.

    False says nothing. To open a header as `describe` does takes as long as an eighth of a small image's answer.
    """
    if not data.startswith(_PNG_SIZE) or len(data) > _SHORT or data.find(b"IHDR", len(_PNG_SIZE)) >= 0:
        return False
    at = len(_PNG_SIZE)
    return int.from_bytes(data[at : at + 4], "big") * int.from_bytes(data[at + 4 : at + 8], "big") <= pixels


def depth(data: bytes, name: str) -> str:
    """The bit depth, from the header alone."""
    with _opened(data, name) as image:
        return layout_of(image).depth


def scan(data: bytes, name: str) -> Scanned:
    """The header; and of a deep image all values, once."""
    with _opened(data, name) as image:
        layout = layout_of(image)
        deep = layout.depth != EIGHT_BIT
        extremes = _deep_values(image, layout, data, name).extremes if deep else Extremes(0, 255)
        return Scanned(image.width, image.height, image.mode, layout.depth, extremes)


def decode(
    data: bytes, name: str, size: int, pixel_range: PixelRange = OLDER, interpolation: str = BILINEAR
) -> UInt8[np.ndarray, "3 {size} {size}"]:
    """The image in RGB, upright, squashed to size x size (with antialiasing)."""
    return decode_within(data, name, size, pixel_range, interpolation).pixels


def decode_within(
    data: bytes,
    name: str,
    size: int,
    pixel_range: PixelRange,
    interpolation: str = BILINEAR,
    *,
    grey: bool = False,
) -> Decoded:
    """The decoded image, and whether it has values beyond the range. A file of another depth is refused.

    With `grey`, an image of grey bytes may come in one channel.
    """
    with _opened(data, name, size) as image:
        layout = layout_of(image)
        if pixel_range != OLDER and layout.depth != pixel_range.depth:
            raise OtherDepth(name, layout.depth, pixel_range)
        if pixel_range.deep:
            return shrunk(_deep_values(image, layout, data, name), size, pixel_range, interpolation)
        image.load()
        pixels = squashed_grey(image, size, interpolation) if grey else None
        return Decoded(squashed(image, size, interpolation) if pixels is None else pixels, clipped=False)


def shrunk(values: DeepValues, size: int, pixel_range: PixelRange, interpolation: str) -> Decoded:
    """The values of a deep image, scaled by the range."""
    scaled, clipped = values.image(pixel_range)
    return Decoded(squashed(scaled, size, interpolation), clipped)


def deep_grey(image: Image.Image, layout: Layout) -> DeepValues:
    """All bits of a deep grey image, upright."""
    image.load()
    return grey_values(np.asarray(upright(image)), layout)


def _deep_values(image: Image.Image, layout: Layout, data: bytes, name: str) -> DeepValues:
    """All bits of a deep image, upright."""
    if not layout.colour:
        return deep_grey(image, layout)
    if reason := why_unreadable(image, layout):
        raise BadImage(name, reason)
    image.load()
    high_bytes = np.asarray(upright(image))  # what was turned goes at once: of a large image it counts
    with _opened(data, name) as again:
        turn_to_low_bytes(again, layout)
        again.load()
        return colour_values(high_bytes, np.asarray(upright(again)), layout, image.mode)


def decode_all(
    root: Path,
    names: Sequence[str],
    size: int,
    pixel_range: PixelRange = OLDER,
    interpolation: str = BILINEAR,
) -> Generator[DecodedImage]:
    """The files in their order, decoded by all cores."""

    def attempt(name: str) -> DecodedImage:
        try:
            data = image_bytes(root / name, name)
            pixels, clipped = decode_within(data, name, size, pixel_range, interpolation)
            return DecodedImage(name, digest_of(data), pixels, "", clipped)
        except OtherDepth:  # no fault of the file: it is for the user to say which depth is meant
            raise
        except BadImage as bad:
            return DecodedImage(name, "", None, str(bad))

    remaining = iter(names)
    # Pillow releases the GIL while it decodes. Its warnings are about metadata that is not used here.
    with ThreadPoolExecutor(os.cpu_count()) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ahead = max(2 * (os.cpu_count() or 1), min(_AHEAD, _AHEAD_BYTES // (3 * size * size)))
        while batch := list(itertools.islice(remaining, ahead)):
            yield from pool.map(attempt, batch)


@contextmanager
def _opened(data: bytes, name: str, size: int | None = None) -> Iterator[ImageFile.ImageFile]:
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
        needed = file.bytes_per_pixel * image.width * image.height + file.table_bytes
        try:
            _check_size(image, file.scans, name)
            if size is not None:
                image.draft(None, (2 * size, 2 * size))
            if size is not None or file.kind != "JPEG":
                needed += _bytes_per_pixel(image) * image.width * image.height
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
    except Exception as error:  # on hostile bytes Pillow raises nearly anything, MemoryError too
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


def _open_header(file: Screened) -> ImageFile.ImageFile:
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


def _bytes_per_pixel(image: Image.Image) -> int:
    """That an image takes until it is in bytes."""
    layout = layout_of(image)
    if layout.depth != EIGHT_BIT:
        return 30 if layout.colour else 20  # as it is, turned, its two bytes apart or as floats, and scaled
    return 1 if image.mode in ("1", "L", "P") else 4


@functools.cache
def silence_libtiff() -> None:
    """Take libtiff's own handlers of errors and warnings away, once for the process.

    They print lines from C that no Python code can catch. Where Pillow has libtiff inside itself (Windows), its
    functions have no names to be found by, and nothing happens.
    """
    with contextlib.suppress(ImportError, OSError, AttributeError):
        from PIL import _imaging

        library = ctypes.CDLL(_imaging.__file__)  # names are looked up in what it is linked to as well
        for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):
            handler = getattr(library, name)
            handler.argtypes, handler.restype = [ctypes.c_void_p], ctypes.c_void_p
            handler(None)
