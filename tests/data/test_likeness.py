"""Images that look alike, told by a difference hash and confirmed by a thumbnail."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from metavib.data.likeness import BANDS, Look, _bits_between, alike_across, look_of


def scene(seed: int, size: int = 64) -> Image.Image:
    """A picture of coarse shapes."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 255, (7, 7, 3), dtype=np.uint8))
    return coarse.resize((size, size), Image.Resampling.BICUBIC)


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image.resize((64, 64)).convert("RGB")).transpose(2, 0, 1)


def encoded(image: Image.Image, quality: int) -> Image.Image:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality)
    return Image.open(io.BytesIO(out.getvalue()))


def test_a_ramp_to_the_right_has_all_bits_and_one_to_the_left_none():
    ramp = np.broadcast_to(np.linspace(0, 255, 64), (3, 64, 64)).astype(np.uint8)
    bright, dark = look_of(ramp), look_of(ramp[:, :, ::-1])
    assert bright is not None
    assert dark is not None
    assert (bright.hashed, dark.hashed) == (2**64 - 1, 0)


def test_plain_images_have_no_look():
    assert look_of(np.full((3, 64, 64), 200, dtype=np.uint8)) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda image: encoded(image, 30),
        lambda image: image.resize((23, 31)),
        lambda image: image.point(lambda value: min(255, value + 20)),
        lambda image: image.convert("L"),
    ],
)
def test_a_changed_copy_is_found_and_others_are_not(change):
    originals = [scene(seed) for seed in range(40)]
    looks = [look_of(pixels(image)) for image in [*originals, change(originals[7])]]
    (pair,) = alike_across(looks, ["a"] * 40 + ["b"])
    assert (pair.first, pair.second) == (7, 40)


def test_pairs_within_a_group_are_not_told_of():
    look = look_of(pixels(scene(1)))
    assert alike_across([look, look, None], ["a", "a", "b"]) == []
    assert [pair[:2] for pair in alike_across([look, look, look], ["a", "a", "b"])] == [(0, 2), (1, 2)]


def test_hashes_that_differ_in_fewer_bits_than_bands_are_always_compared():
    random = np.random.default_rng(0)
    thumbnail = random.integers(0, 255, 256, dtype=np.uint8).tobytes()
    for _ in range(50):
        hashed = int(random.integers(0, 2**63))
        flipped = hashed
        for bit in random.choice(64, BANDS - 1, replace=False):
            flipped ^= 1 << int(bit)
        looks = [Look(hashed, thumbnail), Look(flipped, thumbnail)]
        assert [pair.bits for pair in alike_across(looks, ["a", "b"])] == [BANDS - 1]


def test_different_bits_are_counted():
    bits = _bits_between(np.array([0, 2**64 - 1, 5], dtype=np.uint64))
    assert bits.tolist() == [[0, 64, 2], [64, 0, 62], [2, 62, 0]]
