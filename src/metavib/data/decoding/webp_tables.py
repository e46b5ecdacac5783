"""The code tables that a lossless WebP asks its decoder for, counted from the beginning of its bits.

A lossless WebP (VP8L, RFC 9649) divides the image into blocks, and each block may have prefix codes of its own.
Their tables are built before the first pixel: a megapixel in 300 kB can ask for a gigabyte. How large blocks are
stands after the transforms, small images in prefix codes themselves, which are passed over here.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from metavib.data.decoding.tiff_directory import TooMuch

MAX_SYMBOLS = 100_000  # of all transforms; the usual encoder's have a value for 256 pixels or more

_SIGNATURE = 0x2F
_HEADER_BITS = 40  # signature, width, height, alpha, version
_CHANNEL, _LENGTHS, _DISTANCES = 256, 24, 40  # symbols
_ORDER = (17, 18, 0, 1, 2, 3, 4, 5, 16, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)  # of code lengths' lengths
_MOST_GROUPS = 65_536
_UNCOUNTED_GROUPS = 1000  # that are made even where fewer blocks use them
# A block has five codes: green with lengths and cached colours, red, blue, alpha, distances.
# Bytes of its tables, at most: of four codes; of the fifth, by the bits of its colour cache; and pointers.
_FOUR_CODES, _ENTRY, _POINTERS = 3 * 630 + 410, 4, 600
_GREEN_CODE = (654, 656, 658, 662, 670, 686, 718, 782, 912, 1168, 1680, 2704)

_Code = tuple[int, list[tuple[int, int] | None]]  # bits to look at, and by them length and symbol


def table_bytes(content: bytes) -> int:
    """Bytes of the code tables of the first image in a WebP file; 0 where nothing in it is lossless.

    ValueError says that its bits are damaged, `TooMuch` that they take long to pass over.
    """
    found = 0
    for bits, at, width, height in _lossless(content):
        found = max(found, _Reader(bits, at).table_bytes(width, height))
    return found


class _Stream(NamedTuple):
    bits: bytes
    at: int  # the bit at which its transforms begin
    width: int
    height: int


def _lossless(content: bytes) -> Iterator[_Stream]:
    """Lossless images, and lossless transparency of others, in a file or in the first frame of an animation."""
    width = height = 0
    for kind, part in _chunks(content, 12):
        if kind == b"VP8X" and len(part) >= 10:
            width, height = (1 + int.from_bytes(part[at : at + 3], "little") for at in (4, 7))
        elif kind == b"ANMF":
            width, height = (1 + int.from_bytes(part[at : at + 3], "little") for at in (6, 9))
            for inner, own in _chunks(part, 16):
                yield from _stream(inner, own, width, height)
            return
        else:
            yield from _stream(kind, part, width, height)


def _stream(kind: bytes, part: bytes, width: int, height: int) -> Iterator[_Stream]:
    if kind == b"VP8L":
        if len(part) < 5 or part[0] != _SIGNATURE:
            raise ValueError("no lossless WebP")
        (size,) = struct.unpack_from("<I", part, 1)
        yield _Stream(part, _HEADER_BITS, 1 + (size & 0x3FFF), 1 + (size >> 14 & 0x3FFF))
    elif kind == b"ALPH" and part and part[0] & 3 == 1:
        yield _Stream(part, 8, width, height)


def _chunks(content: bytes, at: int) -> Iterator[tuple[bytes, bytes]]:
    while at + 8 <= len(content):
        kind, length = struct.unpack_from("<4sI", content, at)
        yield kind, content[at + 8 : at + 8 + length]
        at += 8 + length + length % 2


class _Reader:
    """Bits from the lowest of each byte on."""

    def __init__(self, content: bytes, at: int) -> None:
        self._content, self._at, self._end = content, at, 8 * len(content)
        self._symbols = 0

    def table_bytes(self, width: int, height: int) -> int:
        """The most bytes that the tables take, from where the transforms begin."""
        width = self._past_transforms(width, height)
        cached = self._cache_bits()
        groups = 1
        if self._bits(1):
            blocks = _blocks(width, height, self._bits(3) + 2)
            groups = min(_MOST_GROUPS, max(blocks, min(width * height, _UNCOUNTED_GROUPS)))
        return groups * ((_FOUR_CODES + _GREEN_CODE[cached]) * _ENTRY + _POINTERS)

    def _past_transforms(self, width: int, height: int) -> int:
        """The width that remains where colours have been packed."""
        for _ in range(4):
            if not self._bits(1):
                return width
            kind = self._bits(2)
            if kind < 2:  # a predictor or a change of colours for each block
                self._pass_over(_blocks(width, height, self._bits(3) + 2))
            elif kind == 3:  # a palette
                colours = 1 + self._bits(8)
                self._pass_over(colours)
                packed = 0 if colours > 16 else 1 if colours > 4 else 2 if colours > 2 else 3
                width = -(-width >> packed) if packed else width
        if self._bits(1):
            raise ValueError("more than four transforms")
        return width

    def _pass_over(self, pixels: int) -> None:
        """An image of so many pixels with one set of prefix codes."""
        cached = self._cache_bits()
        colours = _CHANNEL + _LENGTHS + (1 << cached if cached else 0)
        green, red, blue, alpha, distance = (
            self._code(size) for size in (colours, _CHANNEL, _CHANNEL, _CHANNEL, _DISTANCES)
        )
        others = [code for code in (red, blue, alpha) if code[0]]
        only = green[1][0]
        if not green[0] and not others and only is not None and not 256 <= only[1] < 280:
            return  # every pixel takes no bits
        while pixels > 0:
            self._symbols += 1
            if self._symbols > MAX_SYMBOLS:
                raise TooMuch(f"more than {MAX_SYMBOLS:,} values of lossless transforms")
            symbol = self._symbol(green)
            if symbol < _CHANNEL:
                for code in others:
                    self._symbol(code)
                pixels -= 1
            elif symbol < _CHANNEL + _LENGTHS:
                pixels -= self._number(symbol - _CHANNEL)
                self._number(self._symbol(distance))
            else:
                pixels -= 1

    def _cache_bits(self) -> int:
        if not self._bits(1):
            return 0
        cached = self._bits(4)
        if not 1 <= cached <= 11:
            raise ValueError(f"a colour cache of {cached} bits")
        return cached

    def _number(self, prefix: int) -> int:
        """A length or a distance, of which the prefix gives the first bits."""
        if prefix < 4:
            return prefix + 1
        extra = (prefix - 2) >> 1
        return ((2 + (prefix & 1)) << extra) + self._bits(extra) + 1

    def _code(self, size: int) -> _Code:
        """One prefix code of so many symbols."""
        if self._bits(1):  # of one symbol, or of two
            two = self._bits(1)
            first = self._bits(8 if self._bits(1) else 1)
            return (1, [(1, first), (1, self._bits(8))]) if two else (0, [(0, first)])
        order = _ORDER[: 4 + self._bits(4)]
        of_lengths = [0] * len(_ORDER)
        for symbol in order:
            of_lengths[symbol] = self._bits(3)
        return _table(self._lengths(_table(of_lengths), size))

    def _lengths(self, code: _Code, size: int) -> list[int]:
        left = 2 + self._bits(2 + 2 * self._bits(3)) if self._bits(1) else size
        lengths: list[int] = []
        last = 8
        while len(lengths) < size and left:
            left -= 1
            symbol = self._symbol(code)
            if symbol < 16:
                lengths.append(symbol)
                last = symbol or last
            elif symbol == 16:
                lengths += [last] * (3 + self._bits(2))
            else:
                lengths += [0] * (3 + self._bits(3) if symbol == 17 else 11 + self._bits(7))
        if len(lengths) > size:
            raise ValueError("more code lengths than symbols")
        return lengths

    def _bits(self, count: int) -> int:
        at = self._at
        self._at = at + count
        if self._at > self._end:
            raise ValueError("the bits of the image are cut off")
        value = int.from_bytes(self._content[at >> 3 : (at >> 3) + 4], "little")
        return (value >> (at & 7)) & ((1 << count) - 1)

    def _symbol(self, code: _Code) -> int:
        width, table = code
        at = self._at
        value = int.from_bytes(self._content[at >> 3 : (at >> 3) + 3], "little")
        found = table[(value >> (at & 7)) & ((1 << width) - 1)]
        if found is None:
            raise ValueError("no such prefix code")
        self._at = at + found[0]
        if self._at > self._end:
            raise ValueError("the bits of the image are cut off")
        return found[1]


def _blocks(width: int, height: int, bits: int) -> int:
    return (-(-width >> bits)) * (-(-height >> bits)) if bits else width * height


def _table(lengths: list[int]) -> _Code:
    """The table that decodes the next bits. A code of one symbol takes none."""
    used = [symbol for symbol, length in enumerate(lengths) if length]
    if len(used) == 1:
        return 0, [(0, used[0])]
    width = max(lengths, default=0)
    if not used or sum(1 << (width - lengths[symbol]) for symbol in used) != 1 << width:
        raise ValueError("no complete prefix code")
    table: list[tuple[int, int] | None] = [None] * (1 << width)
    code = last = 0
    for symbol in sorted(used, key=lambda one: (lengths[one], one)):
        length = lengths[symbol]
        code <<= length - last
        last = length
        first = int(f"{code:0{length}b}"[::-1], 2)  # the first bit of a code is the lowest
        table[first :: 1 << length] = [(length, symbol)] * (1 << (width - length))
        code += 1
    return width, table
