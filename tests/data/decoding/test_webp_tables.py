"""The code tables of a lossless WebP: counted as the decoder makes them, and bounded before it begins."""

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from metavib.data.decoding.images import MAX_MEMORY, TooLarge, decode
from metavib.data.decoding.tiff_directory import TooMuch
from metavib.data.decoding.webp_tables import MAX_SYMBOLS, table_bytes

ONE_BLOCK = (3 * 630 + 410 + 654) * 4 + 600  # bytes of its tables, without a colour cache


def webp(kind: bytes, part: bytes) -> bytes:
    chunk = kind + struct.pack("<I", len(part)) + part + bytes(len(part) % 2)
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


def lossless(width: int, height: int, *fields: tuple[int, int]) -> bytes:
    """A VP8L file: values with their number of bits, the lowest bit first."""
    value, at = 0, 0
    for own, bits in ((0x2F, 8), (width - 1, 14), (height - 1, 14), (0, 1), (0, 3), *fields):
        value |= own << at
        at += bits
    return webp(b"VP8L", value.to_bytes(-(-at // 8) + 8, "little"))


ZERO = ((1, 1), (0, 1), (0, 1), (0, 1))  # a simple code whose only symbol is 0
BLOCKS_OF_4 = ((0, 1), (0, 1), (1, 1), (0, 3))  # no transform, no colour cache, codes for every 4 x 4 pixels


def test_one_set_of_codes_is_counted_once():
    assert table_bytes(lossless(1000, 1000, (0, 1), (0, 1), (0, 1))) == ONE_BLOCK


def test_every_block_may_have_codes_of_its_own():
    assert table_bytes(lossless(200, 201, *BLOCKS_OF_4)) == 50 * 51 * ONE_BLOCK
    assert table_bytes(lossless(1, 1, *BLOCKS_OF_4)) == ONE_BLOCK
    assert table_bytes(lossless(40, 40, *BLOCKS_OF_4)) == 1000 * ONE_BLOCK  # so many are made in any case


def test_a_colour_cache_makes_the_tables_larger():
    cached = table_bytes(lossless(200, 200, (0, 1), (1, 1), (11, 4), (1, 1), (0, 3)))
    assert cached == 2500 * ((3 * 630 + 410 + 2704) * 4 + 600)


def test_transforms_are_passed_over():
    predictor = ((1, 1), (0, 2), (0, 3), (0, 1), *ZERO * 5)  # for every 4 x 4 pixels, all 0
    green = ((1, 1), (2, 2))
    palette = ((1, 1), (3, 2), (1, 8), (0, 1), *ZERO * 5)  # of two colours: eight pixels in one
    assert table_bytes(lossless(200, 200, *predictor, *green, *BLOCKS_OF_4)) == 2500 * ONE_BLOCK
    assert table_bytes(lossless(1600, 200, *palette, *BLOCKS_OF_4)) == 2500 * ONE_BLOCK


def test_transforms_that_take_long_to_pass_over_are_too_much():
    two = (
        (1, 1),
        (1, 1),
        (0, 1),
        (0, 1),
        (1, 8),
    )  # a simple code of the symbols 0 and 1: a bit for each pixel
    bits = ((1, 1), (0, 2), (0, 3), (0, 1), *two, *ZERO * 4, (0, 5000 * 5000 // 16))
    with pytest.raises(TooMuch, match=f"more than {MAX_SYMBOLS:,} values"):
        table_bytes(lossless(5000, 5000, *bits))


def test_a_small_file_that_asks_for_a_gigabyte_of_tables_is_refused():
    bomb = lossless(1000, 1000, *BLOCKS_OF_4)
    assert table_bytes(bomb) > MAX_MEMORY
    with pytest.raises(TooLarge, match="bytes to decode it"):
        decode(bomb, "a", 28)


def test_tables_of_lossless_transparency_and_of_a_frame_are_counted_too():
    stream = lossless(1000, 1000, *BLOCKS_OF_4)[20:]
    size = struct.pack("<I", 999)[:3] * 2
    canvas = b"VP8X" + struct.pack("<I", 10) + bytes(4) + size
    alpha = b"\x01" + stream[5:]
    chunk = b"ALPH" + struct.pack("<I", len(alpha)) + alpha + bytes(len(alpha) % 2)
    assert table_bytes(b"RIFF....WEBP" + canvas + chunk) == 62_500 * ONE_BLOCK
    frame = bytes(6) + size + bytes(4) + b"VP8L" + struct.pack("<I", len(stream)) + stream
    assert table_bytes(webp(b"ANMF", frame)) == 62_500 * ONE_BLOCK


@pytest.mark.parametrize("method", [0, 3, 6])
@pytest.mark.parametrize("quality", [0, 100])
def test_what_the_usual_encoder_makes_is_within_bounds(method, quality):
    import sklearn.datasets

    photograph = Image.open(Path(sklearn.datasets.__file__).parent / "images" / "china.jpg")
    if (method, quality) == (6, 100):  # the encoder's slowest way
        photograph = photograph.reduce(4)
    few = photograph.quantize(7).convert("RGB")
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 70, 4), dtype=np.uint8))
    for image in (photograph, few, noise, Image.new("RGB", (300, 200))):
        file = io.BytesIO()
        image.save(file, "WEBP", lossless=True, method=method, quality=quality, exact=True)
        assert ONE_BLOCK <= table_bytes(file.getvalue()) < 30_000_000
        assert decode(file.getvalue(), "a", 28).shape == (3, 28, 28)


@pytest.mark.parametrize(
    "fields",
    [
        ((1, 1), (2, 2)) * 5,  # transforms without an end
        ((0, 1), (1, 1), (0, 4)),  # a colour cache of no bits
        ((1, 1), (0, 2), (0, 3), (0, 1), (0, 1), (0, 4), *((0, 3),) * 4),  # a code without symbols
        ((1, 1), (0, 2), (0, 3), (0, 1), (0, 1), (0, 4), *((1, 3),) * 4),  # more codes than there is room for
    ],
)
def test_damaged_bits_are_said_to_be(fields):
    with pytest.raises(ValueError):
        table_bytes(lossless(100, 100, *fields))


def test_bits_that_are_cut_off_are_said_to_be():
    predictor = lossless(100, 100, (1, 1), (0, 2), (0, 3), (0, 1), *ZERO * 3)
    with pytest.raises(ValueError, match="cut off"):
        table_bytes(webp(b"VP8L", predictor[20:27]))
