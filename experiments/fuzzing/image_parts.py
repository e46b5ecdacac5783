"""Ways to break an image along its structure: parts repeated, exchanged, emptied or lying, and still well formed.

Changed bytes seldom get past a checksum or a length. Here both are right again, so that decoders go on.
"""

from __future__ import annotations

import random
import re
import struct
import zlib

_NUMBERS = (0, 1, 2, 3, 255, 256, 32_768, 65_500, 65_535, 65_536, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
_REPEATS = (2, 3, 20, 300, 3_000, 40_000)
_LONGEST = 1_000_000  # bytes of what comes out


def regrouped(data: bytes, random: random.Random) -> bytes:
    """The file with a few of its parts changed; one of no known format as it is."""
    if data.startswith(b"\xff\xd8"):
        return b"\xff\xd8" + b"".join(_changed(_segments(data), random, _segment))
    if data.startswith(b"\x89PNG"):
        return data[:8] + b"".join(_changed(_chunks(data, 8, ">I4s", 4), random, _png_chunk))
    if data.startswith(b"RIFF"):
        parts = b"".join(_changed(_chunks(data, 12, "<4sI", 0), random, _riff_chunk))
        return b"RIFF" + struct.pack("<I", len(parts) + 4) + b"WEBP" + parts
    if data.startswith(b"II*\0"):
        return _directory(data, random)
    if data.startswith(b"BM"):
        content = bytearray(data)
        place = random.choice((10, 14, 18, 22, 28, 30, 34, 46))
        content[place : place + 4] = struct.pack("<I", random.choice(_NUMBERS))
        return bytes(content)
    return data


def _changed(parts: list[tuple[bytes, bytes]], random: random.Random, write) -> list[bytes]:
    """Kinds and contents, some of them changed."""
    for _ in range(random.choice((1, 1, 2, 5))):
        if not parts:
            break
        at = random.randrange(len(parts))
        kind, content = parts[at]
        way = random.randrange(7)
        if way == 0:
            most = max(1, _LONGEST // (len(content) + 12))
            parts[at:at] = [(kind, content)] * min(random.choice(_REPEATS), most)
        elif way == 1:
            parts[at:at] = [(kind, b"")] * random.choice(_REPEATS)
        elif way == 2:
            del parts[at]
        elif way == 3:
            other = random.randrange(len(parts))
            parts[at], parts[other] = parts[other], parts[at]
        elif way == 4:
            parts[at] = (parts[random.randrange(len(parts))][0], content)
        elif way == 5 and content:
            place = random.randrange(min(len(content), 40))
            number = struct.pack(random.choice("<>") + random.choice("HI"), random.choice(_NUMBERS) & 0xFFFF)
            parts[at] = (kind, content[:place] + number + content[place + len(number) :])
        else:
            parts[at] = (kind, content[: random.randrange(len(content) + 1)])
    return [write(kind, content) for kind, content in parts[: _LONGEST // 12]]


def _segments(data: bytes) -> list[tuple[bytes, bytes]]:
    """Of a JPEG: the marker, and what follows it up to the next one; scans with their bits."""
    found, at = [], 2
    while (marker := re.compile(rb"\xff[^\x00\xd0-\xd7\xff]").search(data, at)) is not None:
        code = marker[0][1:]
        begin = marker.end()
        length = 0 if code == b"\xd9" else int.from_bytes(data[begin : begin + 2], "big")
        at = begin + length
        if code == b"\xda":
            following = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]").search(data, at)
            at = following.start() if following else len(data)
        found.append((code, data[begin + 2 : at]))
    return found


def _segment(kind: bytes, content: bytes) -> bytes:
    if kind == b"\xd9":
        return b"\xff\xd9"
    if kind == b"\xda" and content:  # the length is that of its head alone
        head = 4 + 2 * content[0]
        return b"\xff\xda" + struct.pack(">H", head + 2) + content
    return b"\xff" + kind + struct.pack(">H", min(len(content) + 2, 65_535)) + content[:65_533]


def _chunks(data: bytes, at: int, form: str, behind: int) -> list[tuple[bytes, bytes]]:
    found = []
    while at + 8 <= len(data):
        first, second = struct.unpack_from(form, data, at)
        kind, length = (first, second) if isinstance(first, bytes) else (second, first)
        found.append((kind, data[at + 8 : at + 8 + length]))
        at += 8 + length + behind + (length % 2 if not behind else 0)
    return found


def _png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _riff_chunk(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("<I", len(content)) + content + bytes(len(content) % 2)


def _directory(data: bytes, random: random.Random) -> bytes:
    """A TIFF whose entries say other numbers, or are there many times."""
    (at,) = struct.unpack_from("<I", data, 4)
    if at + 2 > len(data):
        return data
    (count,) = struct.unpack_from("<H", data, at)
    lines = [data[at + 2 + 12 * n : at + 14 + 12 * n] for n in range(count)]
    for _ in range(random.choice((1, 1, 2, 5))):
        place = random.randrange(len(lines))
        line = bytearray(lines[place].ljust(12, b"\0"))
        way = random.randrange(5)
        if way == 0:
            line[8:12] = struct.pack("<I", random.choice((*_NUMBERS, at, len(data))))
        elif way == 1:
            line[4:8] = struct.pack("<I", random.choice((*_NUMBERS, len(data))))
        elif way == 2:
            line[2:4] = struct.pack("<H", random.randrange(20))
        elif way == 3:
            line[0:2] = struct.pack(
                "<H", random.choice((256, 257, 258, 259, 262, 273, 274, 277, 278, 279, 284, 322, 324))
            )
        else:
            lines[place:place] = [bytes(line)] * random.choice((2, 100, 5_000))
        lines[place] = bytes(line)
    lines = lines[:65_535]
    following = struct.pack("<I", random.choice((0, 0, at, 8, len(data))))
    return (
        b"II*\0"
        + struct.pack("<I", len(data))
        + data[8:]
        + struct.pack("<H", len(lines))
        + b"".join(lines)
        + following
    )
