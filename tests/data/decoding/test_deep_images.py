"""All bits of a file reach the scaling, whatever Pillow would keep of them."""

from __future__ import annotations

import io

import numpy as np
import pytest
from deep_files import RAMP, in_colour, png, saved, tiff
from PIL import Image, ImageOps

from metavib.data.decoding.images import BadImage, Decoded, OtherDepth, decode, decode_within, depth, scan
from metavib.data.decoding.pixel_range import BYTES, OLDER, Extremes, PixelRange

TWELVE_BITS = PixelRange("16-bit", 0.0, 4095.0)
EXPECTED = np.rint(RAMP * (255 / 4095)).astype(np.uint8)


def read(data: bytes, pixel_range: PixelRange = TWELVE_BITS) -> Decoded:
    return decode_within(data, "a", 64, pixel_range)


@pytest.mark.parametrize(
    "data",
    [
        png(RAMP),
        saved(RAMP),
        saved(RAMP, "TIFF"),
        saved(RAMP, "TIFF", compression="tiff_lzw"),
        tiff(RAMP),
        tiff(RAMP, order=">"),
        tiff(RAMP, deflated=True),
        tiff(RAMP.astype(np.int16)),
        tiff(RAMP.astype(np.int16), order=">"),
        png(np.stack([RAMP, np.full_like(RAMP, 65535)], axis=2)),
    ],
)
def test_a_12_bit_ramp_in_a_grey_16_bit_file_keeps_its_256_levels(data: bytes) -> None:
    assert depth(data, "a") == "16-bit"
    assert scan(data, "a")[3:] == ("16-bit", Extremes(0, 4095))
    pixels, clipped = read(data)
    assert len(np.unique(pixels)) == 256
    assert np.array_equal(pixels, np.stack([EXPECTED] * 3))
    assert not clipped


@pytest.mark.parametrize(
    "data",
    [
        png(in_colour(RAMP)),
        png(in_colour(RAMP, 65535)),
        tiff(in_colour(RAMP)),
        tiff(in_colour(RAMP), order=">"),
        tiff(in_colour(RAMP), deflated=True),
        tiff(in_colour(RAMP), order=">", deflated=True),
        tiff(in_colour(RAMP, 65535)),
        tiff(in_colour(RAMP, 65535), deflated=True),
        tiff(in_colour(RAMP, 0), alpha=0),  # a fourth channel that means nothing
    ],
)
def test_16_bit_colour_keeps_its_low_bytes_too(data: bytes) -> None:
    assert scan(data, "a")[3:] == ("16-bit", Extremes(0, 4095))
    assert np.array_equal(read(data).pixels, in_colour(EXPECTED).transpose(2, 0, 1))


def test_all_65536_values_in_colour_are_read_exactly() -> None:
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    for data in (png(in_colour(values)), tiff(in_colour(values)), png(values), tiff(values)):
        for high in (65535.0, 300.0):
            found = decode(data, "a", 256, PixelRange("16-bit", 0.0, high))
            expected = np.rint(values.astype(float).clip(0, high) * (255 / high))
            assert np.array_equal(found[0], expected)


def test_alpha_is_not_scaled_by_the_range_of_the_colours() -> None:
    half = np.full((8, 8, 4), (4095, 0, 0, 32768), dtype=np.uint16)
    for data in (png(half), tiff(half)):
        assert scan(data, "a").extremes == (0, 4095)
        red, green, blue = decode(data, "a", 4, TWELVE_BITS)[:, 0, 0].tolist()
        assert red == 255
        assert green == blue
        assert abs(green - 127) <= 1  # half of the white behind it


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (tiff(RAMP.astype(np.uint32)), ("32-bit", (0, 4095))),
        (tiff(RAMP.astype(np.int32) - 1000), ("32-bit", (-1000, 3095))),
        (tiff(np.full((3, 3), 2**32 - 1, dtype=np.uint32)), ("32-bit", (2**32 - 1, 2**32 - 1))),
        (tiff(RAMP.astype(np.int16) - 1024), ("16-bit", (-1024, 3071))),
        (tiff(np.array([[np.nan, 0.25, np.inf, -3.5]], dtype=np.float32)), ("float", (-3.5, 0.25))),
        (tiff(np.full((2, 2), np.nan, dtype=np.float32)), ("float", (0, 0))),
        (saved(EXPECTED), ("8-bit", (0, 255))),
        (saved(EXPECTED, "JPEG"), ("8-bit", (0, 255))),
        (saved(in_colour(EXPECTED), "BMP"), ("8-bit", (0, 255))),
        (saved(in_colour(EXPECTED), "WEBP"), ("8-bit", (0, 255))),
    ],
)
def test_depth_and_extremes_of_a_file(data: bytes, expected: tuple[str, tuple[float, float]]) -> None:
    found = scan(data, "a")
    assert (found.depth, tuple(found.extremes)) == expected


def test_hounsfield_units_and_floats_are_scaled_by_one_range() -> None:
    units = tiff(np.array([[-1024, 0, 1023, 3071]], dtype=np.int16))
    found = decode(units, "a", 4, PixelRange("16-bit", -1024.0, 3071.0))[0, 0].tolist()
    assert found == [0, 64, 127, 255]
    floats = tiff(np.array([[0.0, 100.0, 250.0, 500.0]], dtype=np.float32))
    pixels, clipped = decode_within(floats, "a", 4, PixelRange("float", 0.0, 250.0))
    assert (pixels[0, 0].tolist(), clipped) == ([0, 102, 255, 255], True)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("colour", [False, True])
def test_deep_images_are_put_upright(orientation: int, colour: bool) -> None:
    small = RAMP[:4, :8] if not colour else in_colour(RAMP)[:4, :8]
    deep = decode(tiff(small, tag274=orientation), "a", 8, PixelRange("16-bit", 0.0, 255.0))
    grey = small.astype(np.uint8) if not colour else small.clip(0, 255).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    Image.fromarray(grey).save(buffer, "TIFF", exif=exif)
    assert np.array_equal(deep, decode(buffer.getvalue(), "a", 8, BYTES))
    assert ImageOps.exif_transpose(Image.open(buffer)).size == ((8, 4) if orientation < 5 else (4, 8))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (tiff(in_colour(RAMP), tag284=2), "separate planes"),
        (tiff(in_colour(RAMP), tag284=2, deflated=True), "separate planes"),
        (tiff(in_colour(RAMP, 65535), alpha=1), "multiplied by its alpha"),
        (png(in_colour(RAMP))[:-2000], "damaged or truncated"),
    ],
)
def test_what_cannot_be_read_whole_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(BadImage, match=f"^a: .*{reason}"):
        read(data)
    with pytest.raises(BadImage, match=reason):
        scan(data, "a")


@pytest.mark.parametrize(
    ("data", "pixel_range", "words"),
    [
        (png(RAMP), BYTES, "a: is 16-bit, but the model takes 8-bit images;"),
        (png(in_colour(RAMP)), BYTES, "a: is 16-bit, but"),
        (
            saved(EXPECTED),
            TWELVE_BITS,
            "a: is 8-bit, but the model takes 16-bit images with values 0 to 4,095;",
        ),
        (tiff(RAMP.astype(np.float32)), TWELVE_BITS, "a: is float, but"),
        (tiff(RAMP.astype(np.uint32)), TWELVE_BITS, "a: is 32-bit, but"),
    ],
)
def test_another_depth_is_refused(data: bytes, pixel_range: PixelRange, words: str) -> None:
    with pytest.raises(OtherDepth, match=words):
        read(data, pixel_range)


def test_older_models_read_deep_files_as_they_did() -> None:
    assert np.array_equal(decode(png(RAMP), "a", 64, OLDER)[0], np.rint(RAMP * (255 / 65535)))
    assert np.array_equal(decode(png(in_colour(RAMP)), "a", 64, OLDER)[0], RAMP >> 8)
    assert np.array_equal(decode(saved(EXPECTED), "a", 64, OLDER)[0], EXPECTED)
