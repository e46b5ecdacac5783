from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from metavib.core.plain_values import made
from metavib.data.decoding.pixel_range import (
    BYTES,
    OLDER,
    Extremes,
    PixelRange,
    covering,
    narrow,
    require_valid,
)

TWELVE_BITS = PixelRange("16-bit", 0.0, 4095.0)


@pytest.mark.parametrize(
    ("depth", "found", "expected"),
    [
        ("8-bit", (3, 200), (0, 255)),
        ("16-bit", (0, 4095), (0, 4095)),  # a 12-bit camera
        ("16-bit", (17, 3801), (0, 4095)),  # of which no image is quite black or white
        ("16-bit", (0, 4096), (0, 8191)),
        ("16-bit", (0, 255), (0, 255)),
        ("16-bit", (0, 65535), (0, 65535)),
        ("16-bit", (0, 1), (0, 1)),
        ("16-bit", (0, 0), (0, 1)),  # black images only
        ("16-bit", (-1024, 3071), (-1024, 3071)),  # Hounsfield units
        ("16-bit", (-5, -5), (-5, 0)),
        ("32-bit", (0, 2**32 - 1), (0, 2**32 - 1)),
        ("float", (0.1, 0.9), (0, 1)),
        ("float", (0.0, 1.0), (0, 1)),
        ("float", (0.5, 254.5), (0, 254.5)),
        ("float", (-0.5, 0.5), (-0.5, 0.5)),
    ],
)
def test_black_is_zero_and_white_the_end_of_the_bits_in_use(
    depth: str, found: tuple[float, float], expected: tuple[float, float]
) -> None:
    assert covering(depth, Extremes(*found)) == PixelRange(depth, *map(float, expected))


@pytest.mark.parametrize("kind", [np.uint16, np.int32, np.uint32, np.float32])
def test_a_12_bit_ramp_has_all_256_levels(kind: type) -> None:
    pixels, clipped = TWELVE_BITS.scaled(np.arange(4096).astype(kind).reshape(64, 64))
    assert pixels.dtype == np.uint8
    assert pixels.shape == (64, 64)
    assert np.array_equal(np.unique(pixels), np.arange(256))
    assert np.array_equal(pixels.reshape(-1), np.rint(np.arange(4096) * 255 / 4095))
    assert not clipped


@pytest.mark.parametrize("kind", [np.uint16, np.int32, np.float32])
def test_values_beyond_are_clipped_and_said(kind: type) -> None:
    assert TWELVE_BITS.scaled(np.array([0, 4095], dtype=kind)).clipped is False
    pixels, clipped = TWELVE_BITS.scaled(np.array([0, 4096, 60000], dtype=kind))
    assert (pixels.tolist(), clipped) == ([0, 255, 255], True)


def test_floats_that_are_not_finite() -> None:
    values = np.array([math.nan, -math.inf, math.inf, -1.0, 3.0], dtype=np.float32)
    pixels, clipped = PixelRange("float", -1.0, 3.0).scaled(values)
    assert (pixels.tolist(), clipped) == ([0, 0, 255, 0, 255], True)
    assert not PixelRange("float", -1.0, 3.0).scaled(values[[0, 3]]).clipped
    largest = float(np.finfo(np.float32).max)
    assert PixelRange("float", -largest, largest).scaled(
        np.float32([-largest, 0, largest])
    ).pixels.tolist() == [
        0,
        128,
        255,
    ]


def test_large_images_are_scaled_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).integers(-9, 99, (7, 11, 3)).astype(np.int32)
    whole = PixelRange("32-bit", -9, 98).scaled(values)
    monkeypatch.setattr("metavib.data.decoding.pixel_range._AT_A_TIME", 10)
    parts = PixelRange("32-bit", -9, 98).scaled(values)
    assert np.array_equal(whole.pixels, parts.pixels)
    assert not parts.clipped
    assert PixelRange("32-bit", -9, 50).scaled(values).clipped


def test_a_range_survives_json() -> None:
    for own in (TWELVE_BITS, BYTES):
        assert made(PixelRange, own.to_json()) == own
        require_valid(own)
    assert not BYTES.deep
    assert not OLDER.deep


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        "16-bit",
        {"depth": "17-bit", "low": 0, "high": 1},
        {"depth": "16-bit", "low": 0, "high": 0},
        {"depth": "16-bit", "low": "0", "high": 1},
        {"depth": "16-bit", "low": 0, "high": math.nan},
        {"depth": "float", "low": -math.inf, "high": 1},
        {"depth": "16-bit", "low": 0, "high": 1, "more": 1},
    ],
)
def test_what_is_no_range_is_refused(value: Any) -> None:
    with pytest.raises(ValueError):
        require_valid(made(PixelRange, value))


def test_a_domain_that_uses_little_of_the_range_is_named() -> None:
    found = [("dark", Extremes(0, 4095)), ("usual", Extremes(0, 60000)), ("blank", Extremes(7, 7))]
    (note,) = narrow(PixelRange("16-bit", 0, 65535), found)
    assert "'dark'" in note
    assert "0 to 4,095 only, of 0 to 65,535" in note
    assert "17 grey levels" in note
