"""Files that ask a decoder for much: what is refused, what is left out, and that images stay the same."""

from __future__ import annotations

import io
import re
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from attacks import image_bombs as bombs
from attacks.image_bombs import BOMBS, chunk, chunks, png, saved, scans, segment
from PIL import Image

from metavib.data.decoding import images, shrinking
from metavib.data.decoding.images import MAX_MEMORY, BadImage, TooLarge, decode
from metavib.data.decoding.screening import screened
from metavib.data.decoding.tiff_directory import MAX_PARTS

EVENTS = 2_000_000  # calls of functions, in Python and from it, with those that check types under test
DECODED = {
    "JPEG: bytes between markers",
    "JPEG: Photoshop's resources",
    "JPEG: metadata that points",
    "JPEG: pages that point",
    "PNG: inflated texts",
    "PNG: inflated profiles",
    "PNG: metadata that points",
    "TIFF: pages",
    "WebP: metadata that points",
}


def photograph(width: int = 90, height: int = 60, mode: str = "RGB") -> Image.Image:
    channels = {"L": 1, "RGB": 3, "RGBA": 4}[mode]
    values = np.random.default_rng(0).integers(0, 256, (height, width, channels), dtype=np.uint8)
    return Image.fromarray(values.squeeze(), mode if mode == "RGBA" else None)


class Calls:
    """Counts calls, which say how much is done in Python whatever the machine is busy with."""

    def __init__(self) -> None:
        self.count = 0

    def _hear(self, frame: object, event: str, argument: object) -> None:
        self.count += event in ("call", "c_call")

    def __enter__(self) -> Calls:
        sys.setprofile(self._hear)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)


@pytest.mark.filterwarnings("ignore")  # Pillow's about metadata
@pytest.mark.parametrize("name", [name for name in BOMBS if "megapixels" not in name])
def test_a_bomb_takes_few_calls_and_is_decoded_or_refused(name: str) -> None:
    content = BOMBS[name](0.2)
    with Calls() as calls:
        try:
            decode(content, "bomb", 28)
            outcome = "decoded"
        except BadImage as bad:
            outcome = str(bad)
    assert calls.count < EVENTS
    assert "\n" not in outcome
    assert (outcome == "decoded") == (name in DECODED), outcome


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "make",
    [
        lambda: chunks(12 * (MAX_PARTS - 10)),
        lambda: chunks(12 * (MAX_PARTS - 10), after=True),
        lambda: chunks(12 * (MAX_PARTS - 10), b"IDAT"),
        lambda: bombs.comments(4 * (MAX_PARTS - 20)),
        lambda: bombs.tables(500_000),
        lambda: bombs.strips(MAX_PARTS),
        lambda: bombs.jpeg_beginning(
            segment(0xE1, b"Exif\0\0" + bombs.pointing_metadata(60_000, 4_000)) + segment(0xE1, b"Exif\0\0")
        ),
    ],
)
def test_the_most_that_is_decoded_takes_few_calls_too(make: Callable[[], bytes]) -> None:
    content = make()
    with Calls() as calls:
        assert decode(content, "bomb", 8).shape == (3, 8, 8)
    assert calls.count < EVENTS


@pytest.mark.parametrize(
    ("count", "width", "height"), [(300, 2000, 2000), (60_000, 200, 100), (15, 9000, 9000), (33_000, 8, 8)]
)
def test_scans_are_bounded_together_with_pixels(count: int, width: int, height: int) -> None:
    with pytest.raises(TooLarge, match=r"^a.jpg: is too large \(.*(scans|segments)"):
        decode(scans(count, width, height), "a.jpg", 28)


def test_scans_are_not_hidden_by_a_false_end() -> None:
    file = screened(scans(50, 64, 64, hidden=True))
    assert file is not None
    assert file.scans >= 60


@pytest.mark.parametrize("count", [0, 5])
def test_usual_scans_are_decoded_as_ever(count: int) -> None:
    plain = saved(photograph(), "JPEG", progressive=True)
    content = plain[:-2] + bombs.scan((1,), 1, 1, 0) * 0 + plain[-2:] + b"\xff\xda" * count  # after the end
    np.testing.assert_array_equal(decode(content, "a", 28), decode(plain, "a", 28))


def test_what_follows_the_image_is_not_looked_at() -> None:
    plain = saved(photograph(), "JPEG")
    film = np.random.default_rng(0).bytes(3_000_000)  # as telephones append one; it holds some false markers
    np.testing.assert_array_equal(decode(plain + film, "a", 28), decode(plain, "a", 28))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {}),
        ("JPEG", {"progressive": True, "quality": 95}),
        ("JPEG", {"comment": b"c" * 60_000, "icc_profile": b"i" * 200_000, "dpi": (300, 300)}),
        ("PNG", {}),
        ("PNG", {"icc_profile": b"i" * 200_000, "dpi": (300, 300)}),
        ("WEBP", {"lossless": True, "icc_profile": b"i" * 2_000, "xmp": b"x" * 2_000}),
        ("BMP", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw", "icc_profile": b"i" * 2_000, "dpi": (300, 300)}),
        ("TIFF", {"compression": "tiff_adobe_deflate", "big_tiff": True}),
        ("TIFF", {"compression": "jpeg", "quality": 90}),
        ("TIFF", {"compression": "packbits", "software": "s" * 999}),
    ],
)
def test_the_pixels_are_those_that_pillow_gives(kind: str, options: dict[str, object]) -> None:
    content = saved(photograph(), kind, **options)
    expected = np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).transpose(2, 0, 1)
    width, height = 90, 60
    whole = Image.fromarray(expected.transpose(1, 2, 0)).resize((30, 30), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(decode(content, "a", 30), np.asarray(whole).transpose(2, 0, 1))
    assert images.size_and_mode(content, "a")[:2] == (width, height)


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_film_or_album_is_its_first_picture(kind: str) -> None:
    first, second = photograph(), Image.new("RGB", (90, 60))
    more = {"save_all": True, "append_images": [second], "format": "MPO" if kind == "JPEG" else "PNG"}
    file = io.BytesIO()
    first.save(file, **more)
    np.testing.assert_array_equal(decode(file.getvalue(), "a", 30), decode(saved(first, kind), "a", 30))


def turned_by_xmp(kind: str) -> bytes:
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><r tiff:Orientation="6"/></x:xmpmeta>'
    if kind == "JPEG":
        whole = segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + xmp)
        return b"\xff\xd8" + whole + saved(photograph(), "JPEG")[2:]
    if kind == "WEBP":
        return saved(photograph(), "WEBP", lossless=True, xmp=xmp)
    text = chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp)
    if kind == "hexadecimal EXIF":
        text = chunk(b"tEXt", b"Raw profile type exif\0\nexif\n 26\n" + bombs.TURNED.hex().encode())
    content = saved(photograph(), "PNG")
    return content[:33] + text + content[33:]


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "PNG", "hexadecimal EXIF"])
def test_an_orientation_is_found_in_all_its_places(kind: str) -> None:
    content = turned_by_xmp(kind)
    upright = Image.open(io.BytesIO(content)).transpose(Image.Transpose.ROTATE_270).resize((30, 30), 2)
    np.testing.assert_array_equal(decode(content, "a", 30), np.asarray(upright).transpose(2, 0, 1))


@pytest.mark.parametrize("entries", [5_000, 300])
def test_metadata_that_points_too_often_is_as_good_as_none(entries: int) -> None:
    exif = bytearray(bombs.pointing_metadata(61_000, entries))
    exif[10:22] = bombs.TURNED[10:22]  # its first entry is an orientation
    content = saved(photograph(), "PNG")
    with_exif = content[:33] + chunk(b"eXIf", bytes(exif)) + content[33:]
    np.testing.assert_array_equal(decode(with_exif, "a", 30), decode(content, "a", 30))


@pytest.mark.parametrize("compression", [6, 34925, 50001, 32809])
def test_a_rare_compression_of_tiff_is_named(compression: int) -> None:
    content = bombs.tiff(4, 4, (273, 4, 1, 8), (279, 4, 1, 16), data=bytes(16), compression=compression)
    with pytest.raises(BadImage, match=f"TIFF compression {compression} is not read"):
        decode(content, "a", 8)


def test_a_tiff_whose_strips_hold_jpegs_has_bounded_scans() -> None:
    body = scans(400, 3000, 3000)
    places = ((273, 4, 1, 8), (278, 4, 1, 3000), (279, 4, 1, len(body)), (277, 3, 1, 3), (262, 3, 1, 6))
    with pytest.raises(TooLarge, match="scans"):
        decode(bombs.tiff(3000, 3000, *places, data=body, compression=7), "a", 8)


@pytest.mark.parametrize(("width", "height"), [(65_501, 1), (1, 65_501), (50_000_000, 1), (65_000, 65_000)])
def test_sides_are_bounded_as_well_as_pixels(width: int, height: int) -> None:
    with pytest.raises(TooLarge, match=f"^a: is too large .{width:,} x {height:,} pixels; the limit"):
        decode(png(width, height, colour=0, bits=1), "a", 8)


MEASURE = """
import resource, sys, warnings
warnings.simplefilter("ignore")
sys.path[:0] = sys.argv[2:]
from metavib.core.memory import keep_freed_memory, peak
from metavib.data.decoding.images import BadImage, decode, depth
from metavib.data.decoding.pixel_range import EIGHT_BIT, OLDER, PixelRange
from attacks.image_bombs import BOMBS, png
from pathlib import Path
keep_freed_memory()
content = Path(sys.argv[1]).read_bytes()
decode(png(64, 64), "first", 227)
own = depth(content, "a")
values = OLDER if own == EIGHT_BIT else PixelRange(own, 0.0, 1.0)
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
before = resident()
try:
    decode(content, "a", 227, values)
    outcome = "decoded"
except BadImage as bad:
    outcome = str(bad)
print(peak() - before, resident() - before, outcome)
"""


LARGE: dict[str, Callable[[], bytes]] = {
    "RGBA, turned": lambda: png(10_000, 5_000, before=chunk(b"eXIf", bombs.TURNED)),
    "100 megapixels": lambda: png(10_000, 10_000, colour=2),
    "grey": lambda: png(10_000, 10_000, colour=0),
    "the largest WebP": lambda: saved(Image.new("RGBA", (4_400, 4_400)), "WEBP", lossless=True, method=0),
    "the largest deep": lambda: saved(Image.new("F", (4_400, 4_400), 0.3), "TIFF", compression="packbits"),
    "the largest deep in colour": lambda: png(3_650, 3_650, colour=2, bits=16),
    "the largest deep with alpha": lambda: png(3_650, 3_650, colour=6, bits=16),
    "the largest deep, turned": lambda: png(
        3_650, 3_650, colour=6, bits=16, before=chunk(b"eXIf", bombs.TURNED)
    ),
    "the largest progressive": lambda: saved(
        Image.new("RGB", (9_000, 7_000)), "JPEG", progressive=True, subsampling=0
    ),
    "one strip": lambda: saved(
        Image.new("RGBA", (7_000, 7_000)), "TIFF", compression="tiff_adobe_deflate", strip_size=1 << 30
    ),
}


@pytest.mark.load
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
@pytest.mark.parametrize("name", LARGE)
def test_the_memory_of_one_image_is_bounded_and_given_back(name: str, tmp_path) -> None:
    content = LARGE[name]()
    path = tmp_path / "image"
    path.write_bytes(content)
    folders = [folder for folder in sys.path if folder]
    command = [sys.executable, "-c", MEASURE, str(path), *folders]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.fullmatch(r"(-?\d+) (-?\d+) decoded\n", printed)
    assert found, printed
    assert int(found[1]) < MAX_MEMORY + 4 * len(content) + (48 << 20)
    assert int(found[2]) < 48 << 20


@pytest.mark.parametrize("mode", ["RGBA", "F"])
def test_what_would_take_too_much_memory_is_refused(mode: str) -> None:
    blank = Image.new(mode, (5_000, 5_000))
    content = (
        saved(blank, "WEBP", lossless=True, method=0)
        if mode == "RGBA"
        else saved(blank, "TIFF", compression="packbits")
    )
    with pytest.raises(
        TooLarge, match=r"^a: is too large \(500,\d+,\d+ bytes to decode it; the limit is 400,000,000"
    ):
        decode(content, "a", 8)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_an_image_made_in_bands_has_the_bits_of_the_whole(
    mode: str, orientation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = saved(photograph(91, 67, mode), "PNG", exif=exif)
    whole = decode(content, "a", 24)
    monkeypatch.setattr(shrinking, "_LARGE", 1000)
    monkeypatch.setattr(shrinking, "_BAND", 700)
    np.testing.assert_array_equal(decode(content, "a", 24), whole)


def test_bands_keep_palettes_and_what_is_transparent(monkeypatch: pytest.MonkeyPatch) -> None:
    image = photograph().quantize(16)
    content = saved(image, "PNG", transparency=3)
    whole = decode(content, "a", 24)
    monkeypatch.setattr(shrinking, "_LARGE", 1000)
    monkeypatch.setattr(shrinking, "_BAND", 700)
    np.testing.assert_array_equal(decode(content, "a", 24), whole)


def damaged_strip() -> bytes:
    content = bytearray(saved(photograph(), "TIFF", compression="tiff_lzw"))
    content[200:2000] = bytes(1800)
    return bytes(content)


@pytest.mark.parametrize(
    "make",
    [
        damaged_strip,
        lambda: bombs.tiff(64, 64, (273, 4, 1, 8), (279, 4, 1, 99), data=bytes(9), compression=8),
        lambda: bombs.tiff(64, 64, (273, 4, 1, 8), (277, 3, 1, 40), (279, 4, 1, 9), data=bytes(9)),
    ],
)
def test_neither_libtiff_nor_pillow_write_lines_of_their_own(make: Callable[[], bytes], tmp_path) -> None:
    content, path = make(), tmp_path / "a.tif"
    path.write_bytes(content)
    code = "import sys; sys.path[:0] = sys.argv[2:]; from pathlib import Path\n"
    code += "from metavib.data.decoding.images import *\n"
    code += "try: decode(Path(sys.argv[1]).read_bytes(), 'a', 8)\nexcept BadImage as bad: print(bad)"
    command = [sys.executable, "-c", code, str(path), *filter(None, sys.path)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    assert ended.stdout.startswith("a: is damaged")
    assert ended.stderr == ""


def test_files_that_are_cut_anywhere_are_decoded_or_refused() -> None:
    whole = [
        saved(photograph(), "JPEG", progressive=True),
        saved(photograph(), "TIFF", compression="tiff_lzw"),
        saved(photograph(), "TIFF", big_tiff=True),
        saved(photograph(), "PNG", icc_profile=b"i" * 900),
    ]
    reasons = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for content in whole:
            for length in (*range(1, 400, 7), *range(400, len(content), 997)):
                try:
                    assert decode(content[:length], "a", 8).shape == (3, 8, 8)
                except BadImage as bad:
                    reasons.append(str(bad))
    assert all(reason.startswith("a: is ") for reason in reasons)


def test_numbers_of_a_directory_may_be_of_any_whole_type() -> None:
    pixels = struct.pack("<16B", *range(16))
    content = bombs.tiff(4, 4, (256, 9, 1, 4), (273, 4, 1, 8), (278, 3, 1, 4), (279, 13, 1, 16), data=pixels)
    assert decode(content, "a", 4)[0].tolist() == np.arange(16).reshape(4, 4).tolist()
