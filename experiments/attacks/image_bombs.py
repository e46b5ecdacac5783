"""Image files that are small, or allowed in size, and ask a decoder for as much as they can.

Each is made by hand from its format's parts, so that it goes on from what the format allows, not from what our
code looks at. `share` of 1 is the size of an upload's limit (20 MB), where it is the number of parts that costs.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterable

from PIL import Image

ALLOWED_SCANS = ((1000, 980), (2000, 235), (7000, 9))  # sides, and the most scans that are decoded of them
UPLOAD = 19_500_000  # bytes, below the server's limit for an image
TURNED = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"  # EXIF: a quarter turn


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    """The bytes of a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


# --- JPEG ---------------------------------------------------------------------------------------------------


def segment(marker: int, content: bytes) -> bytes:
    """One part of a JPEG."""
    return bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content


def scan(components: Iterable[int] = (1, 2, 3), first: int = 0, last: int = 0, bits: int = 0) -> bytes:
    """A scan of a progressive JPEG that says nothing and still passes over all pixels."""
    chosen = b"".join(bytes([component, 0]) for component in components)
    return segment(0xDA, bytes([len(chosen) // 2]) + chosen + bytes([first, last, bits])) + b"\0"


def progressive(width: int = 2000, height: int = 2000) -> bytes:
    """A whole progressive JPEG without its last marker."""
    return saved(Image.new("RGB", (width, height), (90, 120, 30)), "JPEG", progressive=True)[:-2]


def scans(count: int, width: int = 2000, height: int = 2000, *, hidden: bool = False) -> bytes:
    """The same scan again and again; hidden ones come after a comment that holds the marker of an end."""
    comment = segment(0xFE, b"\xff\xd9") if hidden else b""
    return progressive(width, height) + comment + scan() * count + b"\xff\xd9"


def jpeg_beginning(beginning: bytes) -> bytes:
    """A good JPEG with something before its own header."""
    return b"\xff\xd8" + beginning + saved(Image.new("RGB", (64, 64)), "JPEG")[2:]


def comments(size: int) -> bytes:
    """Millions of empty comments."""
    return jpeg_beginning(segment(0xFE, b"") * (size // 4))


def junk(size: int) -> bytes:
    """Bytes between the markers, which readers skip one by one."""
    return jpeg_beginning(segment(0xFE, b"") + bytes(size))


def resources(size: int) -> bytes:
    """Photoshop's list of resources, of empty ones."""
    block = segment(0xED, b"Photoshop 3.0\0" + b"8BIM\x04\x04\0\0\0\0\0\0" * 5400)
    return jpeg_beginning(block * max(1, size // len(block)))


def tables(size: int) -> bytes:
    """Quantisation tables, thousands of times."""
    block = segment(0xDB, (b"\0" + b"\1" * 64) * 1000)
    return jpeg_beginning(block * max(1, size // len(block)))


def arithmetic(passes: int = 200) -> bytes:
    """Arithmetic coding, of which every scan decides every coefficient."""
    frame = segment(0xCA, b"\x08" + struct.pack(">HH", 2000, 2000) + b"\3\1\x11\0\2\x11\0\3\x11\0")
    whole = scan() + scan((1,), 1, 63, 0x01) + scan((1,), 1, 63, 0x10) * passes
    return b"\xff\xd8" + segment(0xDB, b"\0" + b"\1" * 64) + frame + whole + b"\xff\xd9"


# --- PNG ----------------------------------------------------------------------------------------------------


def chunk(kind: bytes, content: bytes = b"") -> bytes:
    """One part of a PNG."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def zeros(count: int) -> bytes:
    """So many zero bytes, compressed: a block of a megabyte that is repeated."""
    made = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = made.compress(bytes(1 << 20)) + made.flush(zlib.Z_FULL_FLUSH)
    end = made.compress(bytes(count % (1 << 20))) + made.flush()
    return b"\x78\xda" + block * (count >> 20) + end + struct.pack(">HH", count % 65_521, 1)


def png(
    width: int, height: int, *, colour: int = 6, bits: int = 8, before: bytes = b"", after: bytes = b""
) -> bytes:
    """A PNG of zeros: colour 0 is grey, 2 RGB, 6 RGBA."""
    row = 1 + (width * bits * {0: 1, 2: 3, 6: 4}[colour] + 7) // 8
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
    pixels = chunk(b"IDAT", zeros(row * height))
    return b"\x89PNG\r\n\x1a\n" + head + before + pixels + after + chunk(b"IEND")


def chunks(size: int, kind: bytes = b"abCd", content: bytes = b"", *, after: bool = False) -> bytes:
    """Millions of small chunks before the pixels, or after them."""
    one = chunk(kind, content)
    many = one * (size // len(one))
    return png(64, 64, after=many) if after else png(64, 64, before=many)


def inflated(size: int, kind: bytes = b"zTXt") -> bytes:
    """Texts or profiles of a megabyte each, compressed to a kilobyte."""
    return chunks(size, kind, b"a\0\0" + zeros(1_000_000))


def pointing_metadata(size: int, entries: int = 65_535) -> bytes:
    """EXIF of many entries, each of which has all the bytes."""
    entries = min(entries, (size - 14) // 12)
    lines = b"".join(struct.pack("<HHII", 40_000 + n % 20_000, 7, size - 8, 8) for n in range(entries))
    whole = b"II*\0\x08\0\0\0" + struct.pack("<H", entries) + lines + bytes(4)
    return whole + bytes(max(0, size - len(whole)))


# --- TIFF ---------------------------------------------------------------------------------------------------


def tiff(
    width: int, height: int, *entries: tuple[int, int, int, int], data: bytes = b"", compression: int = 1
) -> bytes:
    """A grey TIFF; entries (tag, type, count, value or offset) are added, the data lies at 8."""
    usual = [
        (256, 4, 1, width),
        (257, 4, 1, height),
        (258, 3, 1, 8),
        (259, 3, 1, compression),
        (262, 3, 1, 1),
    ]
    lines = sorted({entry[0]: entry for entry in [*usual, *entries]}.values())
    directory = struct.pack("<H", len(lines)) + b"".join(struct.pack("<HHII", *line) for line in lines)
    return b"II*\0" + struct.pack("<I", 8 + len(data)) + data + directory + bytes(4)


def strips(count: int, *, each: int = 1) -> bytes:
    """So many strips, all of them the same bytes of the file."""
    lists = struct.pack("<I", 8) * count + struct.pack("<I", each) * count
    places = ((273, 4, count, 8), (278, 4, 1, 1), (279, 4, count, 8 + 4 * count))
    return tiff(1, count, *places, data=lists)


def overlapping_strips(size: int) -> bytes:
    """Compressed strips of which each has the whole file."""
    count, body = 4000, zeros(1000)
    lists = struct.pack("<I", 8 + 8000 * 4) * count + struct.pack("<I", size) * count
    data = lists + body + bytes(max(0, size - len(lists) - len(body)))
    places = ((273, 4, count, 8), (278, 4, 1, 1), (279, 4, count, 8 + 4 * count))
    return tiff(1000, count, *places, data=data, compression=8)


def pointing_tags(size: int) -> bytes:
    """A TIFF with entries that each have all the bytes of the file."""
    many = [(40_000 + n, 7, size - 8, 8) for n in range(20_000)]
    return tiff(64, 64, (273, 4, 1, 8), (279, 4, 1, 4096), *many, data=bytes(max(4096, size - 240_200)))


def directories(size: int) -> bytes:
    """One page after another, hundreds of thousands of them."""
    page = [(256, 4, 1, 1), (257, 4, 1, 1), (258, 3, 1, 8), (262, 3, 1, 1), (273, 4, 1, 8), (279, 4, 1, 1)]
    lines = struct.pack("<H", len(page)) + b"".join(struct.pack("<HHII", *line) for line in page)
    length = len(lines) + 4
    count = size // length
    pages = b"".join(
        lines + struct.pack("<I", 8 + length * (n + 1) if n + 1 < count else 0) for n in range(count)
    )
    return b"II*\0\x08\0\0\0" + pages


def huge_tile() -> bytes:
    """An image of 64 x 64 in a tile of 40,000 x 40,000 zeros."""
    body = zeros(200_000_000)
    places = ((322, 4, 1, 40_000), (323, 4, 1, 40_000), (324, 4, 1, 8), (325, 4, 1, len(body)))
    return tiff(64, 64, *places, data=body, compression=8)


# --- WebP and BMP -------------------------------------------------------------------------------------------


def riff(parts: bytes) -> bytes:
    """A WebP file of these chunks."""
    return b"RIFF" + struct.pack("<I", len(parts) + 4) + b"WEBP" + parts


def frames(size: int) -> bytes:
    """An animation of a million frames."""
    still = saved(Image.new("RGB", (1, 1)), "WEBP", lossless=True)[12:]
    frame = b"ANMF" + struct.pack("<I", 16 + len(still)) + bytes(16) + still
    head = b"VP8X" + struct.pack("<I", 10) + b"\x02" + bytes(9) + b"ANIM" + struct.pack("<I", 6) + bytes(6)
    return riff(head + frame * (size // len(frame)))


def webp_tables() -> bytes:
    """A megapixel whose 62,500 blocks ask for prefix codes of their own."""
    side, value, at = 999, 0, 0
    for own, bits in ((0x2F, 8), (side, 14), (side, 14), (0, 6), (1, 1), (0, 3)):
        value |= own << at
        at += bits
    content = value.to_bytes(8, "little") + bytes(range(256)) * 1_150
    return riff(b"VP8L" + struct.pack("<I", len(content)) + content)


def webp_metadata(size: int) -> bytes:
    """A WebP with EXIF whose entries each have all the bytes."""
    still = saved(Image.new("RGB", (64, 64)), "WEBP", lossless=True)[12:]
    exif = pointing_metadata(size)
    head = b"VP8X" + struct.pack("<I", 10) + b"\x08\0\0\0" + b"\x3f\0\0" * 2
    return riff(head + still + b"EXIF" + struct.pack("<I", len(exif)) + exif + bytes(len(exif) % 2))


def bmp_runs(size: int) -> bytes:
    """Run-length coding with millions of ends of lines that hold nothing."""
    head = struct.pack("<IiiHHIIiiII", 40, 7000, 7000, 1, 8, 1, 0, 0, 0, 256, 0) + bytes(1024)
    body = b"\0\0" * (size // 2)
    return b"BM" + struct.pack("<IHHI", 14 + len(head) + len(body), 0, 0, 14 + len(head)) + head + body


# --- All of them ----------------------------------------------------------------------------------------------

BOMBS: dict[str, Callable[[float], bytes]] = {
    "JPEG: scans": lambda share: scans(int(200_000 * share)),
    "JPEG: scans behind a false end": lambda share: scans(int(200_000 * share), hidden=True),
    "JPEG: scans of 48 megapixels": lambda share: scans(int(2_000 * share), 8000, 6000),
    "JPEG: arithmetic scans": lambda share: arithmetic(int(2_000 * share)),
    "JPEG: empty comments": lambda share: comments(int(UPLOAD * share)),
    "JPEG: bytes between markers": lambda share: junk(int(UPLOAD * share)),
    "JPEG: Photoshop's resources": lambda share: resources(int(UPLOAD * share)),
    "JPEG: quantisation tables": lambda share: tables(int(UPLOAD * share)),
    "JPEG: metadata that points": lambda share: jpeg_beginning(
        segment(0xE1, b"Exif\0\0" + pointing_metadata(65_000)) * max(1, int(300 * share))
    ),
    "JPEG: pages that point": lambda share: jpeg_beginning(
        segment(0xE2, b"MPF\0" + pointing_metadata(65_000)) * max(1, int(300 * share))
    ),
    "PNG: empty chunks": lambda share: chunks(int(UPLOAD * share)),
    "PNG: empty chunks after the pixels": lambda share: chunks(int(UPLOAD * share), after=True),
    "PNG: empty pieces of pixels": lambda share: chunks(int(UPLOAD * share), b"IDAT"),
    "PNG: frames": lambda share: chunks(int(UPLOAD * share), b"fcTL", bytes(26), after=True),
    "PNG: inflated texts": lambda share: inflated(int(UPLOAD * share)),
    "PNG: inflated profiles": lambda share: inflated(int(UPLOAD * share), b"iCCP"),
    "PNG: metadata that points": lambda share: png(
        64, 64, before=chunk(b"eXIf", pointing_metadata(int(UPLOAD * share)))
    ),
    "PNG: one row": lambda share: png(int(50_000_000 * share), 1, before=chunk(b"eXIf", TURNED)),
    "PNG: one column": lambda share: png(1, int(50_000_000 * share)),
    "PNG: 50 megapixels": lambda share: png(int(8_333 * share), 6_000, before=chunk(b"eXIf", TURNED)),
    "PNG: 65,000 x 65,000": lambda share: png(int(65_000 * share), 65_000, colour=0, bits=1),
    "TIFF: entries that point": lambda share: pointing_tags(int(UPLOAD * share)),
    "TIFF: strips": lambda share: strips(int(2_000_000 * share)),
    "TIFF: strips over one another": lambda share: overlapping_strips(int(UPLOAD * share)),
    "TIFF: pages": lambda share: directories(int(UPLOAD * share)),
    "TIFF: a tile larger than the image": lambda share: huge_tile(),
    "TIFF: 25 megapixels, deep": lambda share: saved(
        Image.new("F", (int(5000 * share), 5000), 0.3), "TIFF", compression="tiff_adobe_deflate"
    ),
    "WebP: frames": lambda share: frames(int(UPLOAD * share)),
    "WebP: metadata that points": lambda share: webp_metadata(int(UPLOAD * share)),
    "WebP: 25 megapixels": lambda share: saved(
        Image.new("RGBA", (int(5000 * share), 5000)), "WEBP", lossless=True, quality=0, method=0
    ),
    "WebP: code tables": lambda share: webp_tables(),
    "BMP: ends of lines": lambda share: bmp_runs(int(UPLOAD * share)),
}
