from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import deep_files
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from metavib.core.errors import UserError
from metavib.data.decoding import images
from metavib.data.decoding.images import BadImage, TooLarge, decode, decode_all, image_bytes, size_and_mode
from metavib.data.decoding.pixel_range import BYTES
from metavib.data.transforms import with_channels

RED, GREEN = (255, 0, 0), (0, 255, 0)


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def halves(width: int = 40, height: int = 20) -> Image.Image:
    """Red above, green below."""
    image = Image.new("RGB", (width, height), RED)
    image.paste(GREEN, (0, height // 2, width, height))
    return image


def test_pixels_are_rgb_with_channels_first_and_squashed_as_pillow_does() -> None:
    gradient = Image.fromarray(np.arange(60 * 90 * 3, dtype=np.uint32).reshape(60, 90, 3).astype(np.uint8))
    expected = np.asarray(gradient.resize((16, 16), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    pixels = decode(encoded(gradient), "a.png", 16)
    assert pixels.dtype == np.uint8
    assert pixels.flags["C_CONTIGUOUS"]
    np.testing.assert_array_equal(pixels, expected)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "TIFF"])
def test_each_allowed_format_is_read(kind: str) -> None:
    pixels = decode(encoded(halves(), kind), "a", 8)
    assert np.abs(pixels[:, 1, 4].astype(int) - RED).max() < 30
    assert np.abs(pixels[:, 6, 4].astype(int) - GREEN).max() < 30


@pytest.mark.parametrize(
    ("mode", "colour", "kind", "expected"),
    [
        ("1", 1, "PNG", (255, 255, 255)),
        ("L", 77, "PNG", (77, 77, 77)),
        ("LA", (0, 0), "PNG", (255, 255, 255)),
        ("LA", (0, 255), "PNG", (0, 0, 0)),
        ("RGBA", (255, 0, 0, 0), "PNG", (255, 255, 255)),
        ("RGBA", (255, 0, 0, 255), "WEBP", (255, 0, 0)),
        ("RGBA", (0, 0, 0, 51), "PNG", (204, 204, 204)),
        ("CMYK", (0, 255, 255, 0), "TIFF", (255, 0, 0)),
        ("YCbCr", (76, 85, 255), "TIFF", (254, 0, 0)),
        ("I;16", 65535, "PNG", (255, 255, 255)),
        ("I;16", 0x8080, "TIFF", (128, 128, 128)),
        ("I;16B", 0x8080, "TIFF", (128, 128, 128)),
        ("I", 257, "TIFF", (1, 1, 1)),
        ("F", 0.2, "TIFF", (51, 51, 51)),
        ("F", float("nan"), "TIFF", (0, 0, 0)),
        ("F", 12.5, "TIFF", (0, 0, 0)),
    ],
)
def test_every_mode_simply_works(mode: str, colour: object, kind: str, expected: tuple[int, ...]) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(Image.new(mode, (9, 7), colour), kind, **options)
    pixels = decode(data, "a", 4)
    assert np.abs(pixels.astype(int) - np.reshape(expected, (3, 1, 1))).max() <= 1


def test_cmyk_jpeg() -> None:
    pixels = decode(encoded(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG"), "a.jpg", 4)
    assert np.abs(pixels.astype(int) - np.reshape(RED, (3, 1, 1))).max() < 10


def test_palette_with_a_transparent_entry_is_put_over_white() -> None:
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, 255, 0, 0])
    assert decode(encoded(image), "a.png", 4)[:, 0, 0].tolist() == [255, 0, 0]
    assert decode(encoded(image, transparency=1), "a.png", 4)[:, 0, 0].tolist() == [255, 255, 255]


def test_deep_values_out_of_their_range_are_stretched_over_their_own() -> None:
    values = np.repeat(np.array([[-100.0, -60.0, 100.0]], dtype=np.float32), 3, axis=0)
    pixels = decode(encoded(Image.fromarray(values), "TIFF"), "a.tif", 3)
    assert pixels[0, 0].tolist() == [0, 51, 255]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(kind: str, orientation: int) -> None:
    upright = Image.fromarray(np.random.default_rng(0).integers(0, 2, (3, 4, 3), dtype=np.uint8) * 255)
    upright = upright.resize((64, 48), Image.Resampling.NEAREST)
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(upright, kind, exif=exif)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB").resize((40, 40), 2)
    np.testing.assert_array_equal(decode(data, "a", 40), np.asarray(expected).transpose(2, 0, 1))
    if orientation == 6 and kind != "TIFF":  # not merely the same as Pillow: a quarter turn did happen
        assert not np.array_equal(decode(data, "a", 40), decode(encoded(upright, kind), "a", 40))


def test_broken_metadata_does_not_cost_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(image: Image.Image) -> Image.Image:
        raise SyntaxError("not a TIFF file")

    monkeypatch.setattr(ImageOps, "exif_transpose", fail)
    assert decode(encoded(halves()), "a.png", 4)[0, 0, 0] == 255


def test_a_large_jpeg_is_decoded_with_less_detail_but_looks_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).normal(0, 8, (1600, 1600, 1))
    photo = (np.linspace(40, 210, 1600)[:, None, None] + noise).clip(0, 255).repeat(3, axis=2)
    data = encoded(Image.fromarray(photo.astype(np.uint8)), "JPEG", quality=95)
    drafted = decode(data, "a.jpg", 32)
    monkeypatch.setattr("PIL.JpegImagePlugin.JpegImageFile.draft", lambda image, mode, size: None)
    whole = decode(data, "a.jpg", 32)
    assert np.abs(drafted.astype(int) - whole.astype(int)).max() <= 3


def png_header(width: int, height: int) -> bytes:
    """A 1-bit PNG of any size: zeros compress to nothing."""
    rows = zlib.compressobj(9)
    body = b"".join(rows.compress(bytes((width + 7) // 8 + 1)) for _ in range(height)) + rows.flush()
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)),
        (b"IDAT", body),
        (b"IEND", b""),
    ]
    parts = (struct.pack(">I", len(c)) + k + c + struct.pack(">I", zlib.crc32(k + c)) for k, c in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize("side", [10_001, 30_000])
def test_a_decompression_bomb_is_refused_with_its_size(side: int) -> None:
    data = png_header(side, side)
    assert len(data) < 200_000
    with pytest.raises(BadImage, match=f"^b.png: is too large .{side:,} x {side:,} pixels"):
        decode(data, "b.png", 8)


def test_below_our_limit_pillows_warning_is_silent_and_its_own_limit_is_put_back() -> None:
    before = Image.MAX_IMAGE_PIXELS
    assert size_and_mode(png_header(9_900, 9_900), "a.png") == (
        9_900,
        9_900,
        "1",
    )  # Pillow warns from 89 million
    assert before == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "a: is empty"),
        (b"This is text, in a file named .jpg", "a: is not a JPEG, PNG, WebP, BMP or TIFF image"),
        (encoded(halves(), "GIF"), "a: is not a JPEG, PNG"),
        (encoded(halves(400, 400), "JPEG")[:-700], "a: is damaged or truncated"),
        (encoded(halves(400, 400), "PNG")[:-300], "a: is damaged or truncated"),
        (encoded(halves(400, 400), "WEBP")[:-100], "a: is damaged or truncated"),
        (encoded(halves(400, 400), "PNG")[:20], "a: is "),
    ],
)
def test_bad_bytes_are_one_line_with_name_and_reason(data: bytes, reason: str) -> None:
    with pytest.raises(BadImage, match=f"^{reason}") as raised:
        decode(data, "a", 8)
    assert isinstance(raised.value, UserError)
    assert "\n" not in str(raised.value)
    assert " object at 0x" not in str(raised.value)


SAMPLES = [
    encoded(halves(), "JPEG"),
    encoded(halves()),
    encoded(Image.new("P", (9, 9), 3)),
    encoded(halves(), "WEBP"),
    encoded(halves(), "BMP"),
    encoded(halves(), "TIFF", compression="tiff_lzw"),
    encoded(Image.new("I;16", (9, 9), 3), "TIFF"),
]


def gives_an_image_or_bad_image(data: bytes) -> bool:
    """Any other exception fails the test."""
    try:
        return decode(data, "hostile", 5).shape == (3, 5, 5)
    except BadImage as bad:
        return str(bad).startswith("hostile: ")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sample=st.sampled_from(SAMPLES),
    changes=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=12),
    cut=st.integers(0, 2000),
)
def test_hostile_bytes_give_an_image_or_a_bad_image(
    sample: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    data = bytearray(sample)
    for position, value in changes:
        data[position % len(data)] = value
    assert gives_an_image_or_bad_image(bytes(data[: len(data) - cut % len(data)]))


@settings(max_examples=100, deadline=None)
@given(start=st.sampled_from([sample[:12] for sample in SAMPLES]), rest=st.binary(max_size=300))
def test_any_bytes_after_a_signature(start: bytes, rest: bytes) -> None:
    assert gives_an_image_or_bad_image(start + rest)


def test_read_names_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty.png").touch()
    (tmp_path / "large.png").write_bytes(bytes(101))
    (tmp_path / "fine.png").write_bytes(bytes(100))
    monkeypatch.setattr(images, "MAX_BYTES", 100)
    assert image_bytes(tmp_path / "fine.png", "fine") == bytes(100)
    for name, reason in [
        ("empty.png", "is empty"),
        ("large.png", r"is too large \(101 bytes; the limit is 100\)"),
        ("missing.png", r"cannot be read \(No such file"),
        ("", "is not a regular file"),
    ]:
        with pytest.raises(BadImage, match=f"^n: {reason}"):
            image_bytes(tmp_path / name, "n")
    with pytest.raises(BadImage, match=r"is too large"):
        decode(bytes(101), "n", 8)


def test_decode_all_keeps_the_order_and_goes_on_after_a_bad_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "_AHEAD", 4)
    names = [f"{shade:03}.png" for shade in range(0, 110, 10)]
    for name in names:
        Image.new("L", (6, 6), int(name[:3])).save(tmp_path / name)
    (tmp_path / "050.png").write_bytes(b"no image")
    rows = list(decode_all(tmp_path, names, 2))
    assert [row.name for row in rows] == names
    assert [int(row.pixels[0, 0, 0]) for row in rows if row.pixels is not None] == [
        int(name[:3]) for name in names if name != "050.png"
    ]
    assert [row.problem for row in rows if row.problem] == [
        "050.png: is not a JPEG, PNG, WebP, BMP or TIFF image, or its header is damaged"
    ]


@pytest.mark.parametrize(
    ("mode", "bytes_per_pixel"),
    [("I;16", 20), ("F", 20), ("RGB", 4), ("L", 1)],
)
def test_memory_is_bounded_by_what_a_pixel_of_its_kind_takes(monkeypatch, mode, bytes_per_pixel):
    file = io.BytesIO()
    Image.new(mode, (100, 90)).save(file, "TIFF")
    _decoded_at_most(monkeypatch, file.getvalue(), 9000 * bytes_per_pixel)


def test_memory_of_deep_colours_is_bounded(monkeypatch):
    """Of a pixel: its high bytes and its low ones, as Pillow has them, turned and as arrays, and both together."""
    png = deep_files.png(np.zeros((90, 100, 3), np.uint16))
    _decoded_at_most(monkeypatch, png, 9000 * 30)


def _decoded_at_most(monkeypatch, content, needed):
    """Decoded with so much memory, and refused with a byte less."""
    monkeypatch.setattr(images, "MAX_MEMORY", needed)
    images.decode(content, "a", 28)
    monkeypatch.setattr(images, "MAX_MEMORY", needed - 1)
    with pytest.raises(TooLarge, match=f"{needed:,} bytes to decode it"):
        images.decode(content, "a", 28)


def test_a_small_png_is_known_by_its_first_bytes_and_nothing_else_is():
    png = encoded(halves(40, 20))
    assert images.surely_within(png, 800)
    assert not images.surely_within(png, 799)
    assert not images.surely_within(png[:20] + png[8:], 10**9)  # two headers: the second would count
    assert not images.surely_within(encoded(halves(), "JPEG"), 10**9)
    assert not images.surely_within(b"", 10**9)


@pytest.mark.parametrize("size", [7, 28, 40])
@pytest.mark.parametrize("side", [(28, 28), (5, 90), (300, 41)])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_grey_image_in_one_channel_is_that_of_three(size, side, orientation):
    values = np.random.default_rng(0).integers(0, 256, side, dtype=np.uint8)
    values.flat[: min(256, values.size)] = np.arange(min(256, values.size))  # every value
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG", exif=exif)
    pixels, _ = images.decode_within(file.getvalue(), "x", size, BYTES, grey=True)
    assert pixels.shape == (1, size, size)
    of_three = decode(file.getvalue(), "x", size, BYTES)
    assert np.array_equal(with_channels(of_three[None], 1)[0], pixels)


@pytest.mark.parametrize(("mode", "named"), [("RGB", {}), ("LA", {}), ("L", {"transparency": 0}), ("1", {})])
def test_what_is_not_only_grey_bytes_comes_in_three_channels(mode, named):
    file = io.BytesIO()
    Image.new(mode, (9, 9)).save(file, "PNG", **named)
    assert images.decode_within(file.getvalue(), "x", 9, BYTES, grey=True).pixels.shape == (3, 9, 9)
