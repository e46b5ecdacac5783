"""Deep image files as cameras and microscopes write them; Pillow cannot write most of these."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Sequence

import numpy as np
from PIL import Image

RAMP = np.arange(4096, dtype=np.uint16).reshape(64, 64)  # every value of 12 bits, once
_PNG_COLOURS = {1: 0, 2: 4, 3: 2, 4: 6}  # by the number of channels: grey, grey with alpha, RGB, RGBA
_SAMPLE_FORMATS = {"u": 1, "i": 2, "f": 3}
_ALPHA = 2  # not multiplied into the colours


def in_colour(values: np.ndarray, *alpha: int) -> np.ndarray:
    """A grey image as RGB, each channel shifted by one, with alpha where it is given."""
    channels = [np.roll(values, shift) for shift in range(3)]
    return np.stack([*channels, *(np.full_like(values, opacity) for opacity in alpha)], axis=2)


def png(values: np.ndarray) -> bytes:
    """A 16-bit PNG of [height, width] or [height, width, channels]."""
    height, width = values.shape[:2]
    channels = values.shape[2] if values.ndim == 3 else 1
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", width, height, 16, _PNG_COLOURS[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def tiff(
    values: np.ndarray, *, order: str = "<", deflated: bool = False, alpha: int = _ALPHA, **more: int
) -> bytes:
    """A TIFF of the array's own depth; `order` is of its bytes, and `more` are tags such as `tag284=2`."""
    height, width = values.shape[:2]
    channels = values.shape[2] if values.ndim == 3 else 1
    data = values.astype(values.dtype.newbyteorder(order)).tobytes()
    data = zlib.compress(data) if deflated else data
    tags: dict[int, Sequence[int]] = {
        256: [width],
        257: [height],
        258: [8 * values.dtype.itemsize] * channels,
        259: [8 if deflated else 1],
        262: [1 if channels == 1 else 2],
        273: [8],
        277: [channels],
        278: [height],
        279: [len(data)],
        339: [_SAMPLE_FORMATS[values.dtype.kind]] * channels,
    }
    if channels == 4:
        tags[338] = [alpha]
    tags |= {int(name.removeprefix("tag")): [value] for name, value in more.items()}
    beside, entries = b"", b""
    for tag, numbers in sorted(tags.items()):
        long = tag in (273, 279)
        packed = struct.pack(order + ("I" if long else "H") * len(numbers), *numbers)
        if len(packed) > 4:
            place, beside = 8 + len(data) + len(beside), beside + packed
            packed = struct.pack(order + "I", place)
        entries += struct.pack(order + "HHI", tag, 4 if long else 3, len(numbers)) + packed.ljust(4, b"\0")
    directory = struct.pack(order + "H", len(tags)) + entries + bytes(4)
    mark = b"II*\0" if order == "<" else b"MM\0*"
    return mark + struct.pack(order + "I", 8 + len(data) + len(beside)) + data + beside + directory


def saved(values: np.ndarray, kind: str = "PNG", **options: object) -> bytes:
    """A file as Pillow writes it."""
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, kind, **options)
    return buffer.getvalue()
