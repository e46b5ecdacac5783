"""The directory of a TIFF file, and of EXIF, which is one: read here before any library reads it.

An entry says how many values of which type it has and where they lie. Nothing keeps 65,535 entries from pointing
at the same 20 MB, strips from overlapping, or directories from following one another for ever. So the file that
the decoder gets has one directory, with the entries alone that decide the pixels.
"""

import struct
from typing import NamedTuple

MAX_PARTS = 32_768  # strips and tiles here, segments and chunks of other formats

_ENTRIES = 4096  # of a directory; a usual one has 20
_SAMPLES_READ = 6
_ENTRY_BYTES = 1 << 20  # of one that is not a list of parts
_SIZES = {  # of a value, by its type
    **dict.fromkeys((1, 2, 6, 7), 1),
    **dict.fromkeys((3, 8), 2),
    **dict.fromkeys((4, 9, 11, 13), 4),
    **dict.fromkeys((5, 10, 12, 16, 17, 18), 8),
}
_WHOLE_NUMBERS = {1: "B", 3: "H", 4: "I", 6: "b", 8: "h", 9: "i", 13: "I", 16: "Q", 17: "q"}
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _ORIENTATION = 256, 257, 258, 259, 274
_STRIPS, _SAMPLES, _ROWS, _STRIP_BYTES = 273, 277, 278, 279
_TILE_WIDTH, _TILE_HEIGHT, _TILES, _TILE_BYTES = 322, 323, 324, 325
_LISTS = {_STRIPS, _TILES, _STRIP_BYTES, _TILE_BYTES}
_SHAPE = {_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _ORIENTATION, _SAMPLES, _ROWS, _TILE_WIDTH, _TILE_HEIGHT}
# Colours, order of bits and planes, predictor, palette; and from 347 on tables of JPEG, YCbCr.
_COLOURS = {262, 266, 284, 292, 293, 317, 320, 332, 338, 339, 347, 529, 530, 531, 532}
_PIXELS = _SHAPE | _LISTS | _COLOURS
_RAW, _JPEG = 1, 7
# Fax, LZW, deflate, PackBits, Zstandard. LZMA may ask for gigabytes; the others have died out.
_READ = {_RAW, 2, 3, 4, 5, _JPEG, 8, 32773, 32946, 50000}


class TooMuch(ValueError):
    """A file that asks for more work or memory than an image may."""


class Rebuilt(NamedTuple):
    """A TIFF file with one directory, without what the pixels do not depend on."""

    content: bytes
    jpeg: bool
    part_pixels: int  # of a strip or tile
    bytes_per_pixel: float  # that the decoder holds beside the image


def rebuilt_directory(content: bytes) -> Rebuilt:
    """The file with its first directory alone, and of it what decides the pixels; bounded in parts and bytes."""
    directory = _Directory(content)
    directory.keep(_PIXELS)
    for tag, entry in directory.entries.items():
        if tag in _LISTS and entry.values > MAX_PARTS:
            raise TooMuch(f"{entry.values:,} strips or tiles; the limit is {MAX_PARTS:,}")
        if tag not in _LISTS and entry.size > _ENTRY_BYTES:
            raise TooMuch(f"{entry.size:,} bytes in the entry {tag} of its directory")
    compression = directory.number(_COMPRESSION, _RAW)
    if compression not in _READ:
        raise ValueError(f"the TIFF compression {compression} is not read")
    if (samples := directory.number(_SAMPLES, 1)) > _SAMPLES_READ:  # of which Pillow would log a line
        raise ValueError(f"{samples:,} samples a pixel are not read")
    if any(directory.sum(tag) > 2 * len(content) for tag in (_STRIP_BYTES, _TILE_BYTES)):
        raise ValueError("strips or tiles have more bytes than the file")
    width, height = directory.number(_WIDTH, 0), directory.number(_HEIGHT, 0)
    part = width * min(height, directory.number(_ROWS, height))
    if _TILES in directory.entries:
        part = directory.number(_TILE_WIDTH, 0) * directory.number(_TILE_HEIGHT, 0)
        tiled = part * directory.entries[_TILES].values
        if tiled > max(4 * width * height, 1 << 24):
            raise TooMuch(f"{tiled:,} pixels in tiles, of an image of {width * height:,}")
    held = 4.0 if directory.number(_ORIENTATION, 1) > 1 else 0.0  # Pillow turns a copy
    if compression != _RAW:
        held += max(4.0, samples * directory.number(_BITS, 1) / 8) * part / max(width * height, 1)
    return Rebuilt(directory.at_the_end(), compression == _JPEG, part, held)


def sound_metadata(exif: bytes) -> bool:
    """Whether the first directory of EXIF has no more entries, and no more bytes in them, than it can have."""
    exif = exif.removeprefix(b"Exif\0\0")
    try:
        return sum(entry.size for entry in _Directory(exif).lines) <= len(exif)
    except ValueError:
        return False


class _Entry(NamedTuple):
    tag: int
    kind: int
    values: int  # how many
    field: bytes  # the values, or where they lie
    line: bytes  # as it stands in the file

    @property
    def size(self) -> int:
        """Bytes of all values."""
        return _SIZES.get(self.kind, 0) * self.values


class _Directory:
    """The first directory of a file: TIFF, or BigTIFF with numbers of 64 bits."""

    def __init__(self, content: bytes) -> None:
        self.content, self.entries = content, dict[int, _Entry]()
        self.lines: list[_Entry] = []
        self.order = "<" if content.startswith(b"II") else ">"
        big = content[2:4] in (b"+\0", b"\0+")
        self.offset, self.count = (
            (self.order + "Q", self.order + "Q") if big else (self.order + "I", self.order + "H")
        )
        self.start = 8 if big else 4  # where the file says where its directory begins
        line = struct.Struct(self.order + ("HHQ8s" if big else "HHI4s"))
        try:
            (at,) = struct.unpack_from(self.offset, content, self.start)
            (count,) = struct.unpack_from(self.count, content, at)
            if count > _ENTRIES:
                raise TooMuch(f"{count:,} entries in its directory")
            at += struct.calcsize(self.count)
            for begin in range(at, at + count * line.size, line.size):
                tag, kind, values, field = line.unpack_from(content, begin)
                self.lines.append(_Entry(tag, kind, values, field, content[begin : begin + line.size]))
        except struct.error as error:
            raise ValueError("the directory is cut off") from error

    def keep(self, wanted: set[int]) -> None:
        """Only these entries are looked up and written; of several alike, the first."""
        for entry in self.lines:
            if entry.tag in wanted:
                self.entries.setdefault(entry.tag, entry)

    def _numbers(self, tag: int, most: int) -> tuple[int, ...]:
        """The values of an entry, so many at most; none where there is no such entry."""
        entry = self.entries.get(tag)
        if entry is None:
            return ()
        if (kind := _WHOLE_NUMBERS.get(entry.kind)) is None:
            raise ValueError(f"the entry {tag} of the directory has no whole numbers")
        source, begin = entry.field, 0
        if entry.size > len(source):
            source, (begin,) = self.content, struct.unpack(self.offset, source)
        try:
            return struct.unpack_from(f"{self.order}{min(entry.values, most)}{kind}", source, begin)
        except struct.error as error:
            raise ValueError(f"the entry {tag} of the directory is cut off") from error

    def number(self, tag: int, default: int) -> int:
        """The first value of an entry."""
        return next(iter(self._numbers(tag, 1)), default)

    def sum(self, tag: int) -> int:
        """Of all values of an entry."""
        return sum(self._numbers(tag, MAX_PARTS))

    def at_the_end(self) -> bytes:
        """The file as it is, with a directory of these entries at its end and nothing after it."""
        padding = bytes(len(self.content) % 2)
        at = struct.pack(self.offset, len(self.content) + len(padding))
        lines = b"".join(entry.line for entry in self.entries.values())
        directory = struct.pack(self.count, len(self.entries)) + lines + bytes(len(at))
        rest = memoryview(self.content)[self.start + len(at) :]
        return b"".join((self.content[: self.start], at, rest, padding, directory))
