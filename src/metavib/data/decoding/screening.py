"""The cost of decoding an image file, counted from its structure before anything is decoded.

A small file can ask for much: a JPEG scan of 14 bytes passes over all pixels, an empty PNG chunk takes as long as
a full one, and thousands of metadata entries may each point at the whole file. So each format is walked along its
markers or chunks. What the pixels do not depend on is left out of what the decoder sees; what remains is bounded.
A walk takes time by the number of parts, which is bounded too, and hardly by the number of bytes.
"""

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from metavib.data.decoding.tiff_directory import MAX_PARTS, TooMuch, rebuilt_directory, sound_metadata
from metavib.data.decoding.webp_tables import table_bytes

MAX_PIXEL_SCANS = 1_000_000_000  # half a second; a usual progressive JPEG has 10 scans
MAX_RUN_LENGTH_WORK = 4_000_000  # pixels and bytes of a run-length BMP, which Pillow decodes in Python

_HEADER_BYTES = 1 << 19  # tables and the kept metadata of a JPEG; a usual one has a tenth of it
_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]")  # not stuffing, fill bytes and restarts
_START, _END, _SCAN = 0xD8, 0xD9, 0xDA
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_PROGRESSIVE = 0xC2
_ARITHMETIC = {0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF}
_BARE = {_START, *range(0x02, 0xC0), *range(0xF0, 0xFE)}  # without a length, as Pillow reads them
_XMP = b"http://ns.adobe.com/xap/1.0/\0"

_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_PIXELS = {b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"}
_PNG_OTHERS = {b"IHDR", b"PLTE", b"tRNS", b"IEND", b"eXIf", b"tEXt", b"zTXt", b"iTXt"}
_PNG_TEXT = (b"XML:com.adobe.xmp\0", b"Raw profile type exif\0")  # where an orientation may stand
_PNG_KEPT = 16  # chunks beside the pixels'
_CHUNK = struct.Struct(">I4s")


class Screened(NamedTuple):
    """A file that a decoder may be given, and what it will ask for."""

    kind: str  # as Pillow calls the format
    content: bytes
    scans: int = 1  # passes over all pixels
    bytes_per_pixel: float = 0.0  # that the decoder holds beside the image, however small it becomes
    table_bytes: int = 0  # that the decoder holds whatever the pixels are


def screened(content: bytes) -> Screened | None:
    """The file without what its pixels do not depend on; None where it is of no format that is read.

    `TooMuch` says which bound it is over, and any other ValueError what is wrong with it.
    """
    if content.startswith(b"\xff\xd8\xff"):
        return _jpeg(content)
    if content.startswith(_PNG):
        return Screened("PNG", _png(content))
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        return _webp(content)
    if content.startswith(b"BM"):
        return _bmp(content)
    if content.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")):
        return _tiff(content)
    return None


def _jpeg(content: bytes) -> Screened:
    """Counts scans up to the end of the image; comments and most application segments are left out."""
    segments, frame, progressive = [b"\xff\xd8"], b"", False
    first = 0
    for marker, begin, end in _segments(content, 2):
        if marker == _SCAN:
            first, after = begin, end
            break
        if marker < 0xE0 or _matters(marker, content[begin + 4 : end]):
            segments.append(content[begin:end])
            if marker in _FRAMES:
                frame, progressive = content[begin + 4 : end], marker == _PROGRESSIVE
                if marker in _ARITHMETIC:
                    raise ValueError("arithmetic coding is not read")
    if not first or len(frame) < 6:
        raise ValueError("no image in it")
    header = b"".join(segments)
    if len(header) > _HEADER_BYTES:
        raise TooMuch(f"more than {_HEADER_BYTES:,} bytes of header")
    scans = 1
    if content.find(b"\xff\xda", after) >= 0:  # what looks like one more may be part of something else
        scans += sum(marker == _SCAN for marker, _, _ in _segments(content, after))
    if first != len(header):
        content = b"".join((header, memoryview(content)[first:]))
    return Screened("JPEG", content, scans, _coefficients(frame) if scans > 1 or progressive else 0.0)


def _segments(content: bytes, at: int) -> Iterator[tuple[int, int, int]]:
    """Markers up to the end of the image, with where they begin and where what belongs to them ends."""
    for _ in range(MAX_PARTS):
        found = _MARKER.search(content, at)
        if found is None:
            return
        begin, at = found.span()
        marker = content[at - 1]
        if marker == _END:
            return
        if marker not in _BARE:
            at += int.from_bytes(content[at : at + 2], "big")
            yield marker, begin, at
    raise TooMuch(f"more than {MAX_PARTS:,} segments")


def _matters(marker: int, segment: bytes) -> bool:
    """Whether colours or the orientation depend on an application segment or a comment."""
    if marker == 0xE1:
        return segment.startswith(_XMP) or (segment.startswith(b"Exif\0\0") and sound_metadata(segment))
    return (marker == 0xE0 and segment.startswith(b"JFIF")) or (
        marker == 0xEE and segment.startswith(b"Adobe")
    )


def _coefficients(frame: bytes) -> float:
    """Bytes a pixel of the coefficients of all components, which are held until the last scan."""
    factors = [(factor >> 4, factor & 15) for factor in frame[7::3]]
    across, down = (max((factor[axis] for factor in factors), default=1) or 1 for axis in (0, 1))
    return sum(2.0 * own * other for own, other in factors) / (across * down)


def _png(content: bytes) -> bytes:
    """Only what pixels and orientation depend on: no animation, profiles or texts."""
    runs: list[list[int]] = [[0, 8]]  # of what is kept
    at, others = 8, 0
    for _ in range(MAX_PARTS):
        if at + 12 > len(content):
            runs.append([at, len(content)])  # cut off: the decoder says so
            break
        length, kind = _CHUNK.unpack_from(content, at)
        end = at + 12 + length
        keeps = kind in _PNG_PIXELS
        if kind in _PNG_OTHERS and (keeps or kind == b"eXIf" or content.startswith(_PNG_TEXT, at + 8)):
            others += 1
            keeps = others <= _PNG_KEPT
        if keeps:
            if runs[-1][1] == at:
                runs[-1][1] = end
            else:
                runs.append([at, end])
        at = end
        if kind == b"IEND":
            break
    else:
        raise TooMuch(f"more than {MAX_PARTS:,} chunks")
    if len(runs) == 1 and runs[0][1] >= len(content):
        return content
    whole = memoryview(content)
    return b"".join(whole[start:end] for start, end in runs)


def _webp(content: bytes) -> Screened:
    """Counts chunks and code tables; of an animation the decoder shows the first frame only."""
    at = 12
    for _ in range(MAX_PARTS):
        if at + 8 > len(content):
            # The decoder holds its own image, two canvases and a copy, before there is one of ours.
            return Screened("WEBP", content, bytes_per_pixel=16.0, table_bytes=table_bytes(content))
        length = int.from_bytes(content[at + 4 : at + 8], "little")
        at += 8 + length + length % 2
    raise TooMuch(f"more than {MAX_PARTS:,} chunks")


def _bmp(content: bytes) -> Screened:
    """Bounds run-length coding, the one kind whose cost is not that of the file's own bytes."""
    if len(content) >= 34 and int.from_bytes(content[14:18], "little") >= 40:
        width, height, compression = struct.unpack_from("<ii4xI", content, 18)
        work = abs(width * height) + len(content)
        if compression in (1, 2) and work > MAX_RUN_LENGTH_WORK:
            raise TooMuch(f"run-length coding is read up to {MAX_RUN_LENGTH_WORK:,} pixels and bytes")
    return Screened("BMP", content)


def _tiff(content: bytes) -> Screened:
    """One directory, with a bounded number of strips or tiles; in JPEG with a bounded number of scans."""
    file = rebuilt_directory(content)
    scans = content.count(b"\xff\xda") if file.jpeg else 1
    if scans * file.part_pixels > MAX_PIXEL_SCANS:
        raise TooMuch(f"strips or tiles of {file.part_pixels:,} pixels with {scans:,} scans in all")
    return Screened("TIFF", file.content, bytes_per_pixel=file.bytes_per_pixel)
