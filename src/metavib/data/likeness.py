"""Images that look alike though their bytes differ: scaled, re-encoded, or a little brighter.

A difference hash (dHash) says for 8 x 8 places whether the image gets brighter to the right. Hashes that differ
in a few bits propose a pair; thumbnails that correlate confirm it. Images that are nearly plain have no hash.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from metavib.core.shapes import UInt8

BITS = 64
BANDS = 5  # hashes that differ in fewer places than this agree in a whole band
MOST_DIFFERENT = BANDS - 1  # bits
LEAST_CONTRAST = 6.0  # deviation of the grey values; below it an image is plain
LEAST_CORRELATION = 0.96  # of two thumbnails
MOST_IN_A_BUCKET = 2000  # what more images share says nothing
SIDE = 16  # of a thumbnail
LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)  # of red, green and blue, as Pillow has it
_POPCOUNT = np.array([bin(number).count("1") for number in range(1 << 16)], dtype=np.uint8)


class Look(NamedTuple):
    """The look of an image, reduced to what is compared."""

    hashed: int
    thumbnail: bytes  # SIDE x SIDE grey values


class AlikePair(NamedTuple):
    """Positions of two images that look alike, and how far their hashes differ."""

    first: int
    second: int
    bits: int


def look_of(pixels: UInt8[np.ndarray, "3 size size"]) -> Look | None:
    """How an image looks; None where it is plain. Its size must be a multiple of 16."""
    grey = np.tensordot(LUMA, pixels.astype(np.float32), axes=1)
    if grey.std() < LEAST_CONTRAST:
        return None
    step = grey.shape[0] // SIDE
    thumbnail = grey.reshape(SIDE, step, SIDE, step).mean(axis=(1, 3))
    rows = thumbnail.reshape(8, 2, SIDE).mean(axis=1)
    columns = np.stack([part.mean(axis=1) for part in np.array_split(rows, 9, axis=1)], axis=1)
    brighter = (columns[:, 1:] > columns[:, :-1]).reshape(-1)
    hashed = int("".join("1" if bit else "0" for bit in brighter), 2)
    return Look(hashed, np.clip(thumbnail.round(), 0, 255).astype(np.uint8).tobytes())


def alike_across(looks: Sequence[Look | None], groups: Sequence[str]) -> list[AlikePair]:
    """Pairs of images of different groups that look alike, the most alike first."""
    hashes = np.array([0 if look is None else look.hashed for look in looks], dtype=np.uint64)
    buckets: dict[tuple[int, int], list[int]] = defaultdict(list)
    width = -(-BITS // BANDS)
    for position, look in enumerate(looks):
        if look is not None:
            for band in range(BANDS):
                buckets[band, look.hashed >> band * width & (1 << width) - 1].append(position)
    found: dict[tuple[int, int], int] = {}
    names = np.array([hash(group) for group in groups])
    for members in buckets.values():
        if not 1 < len(members) <= MOST_IN_A_BUCKET:
            continue
        own = np.array(members)
        bits = _bits_between(hashes[own])
        near = np.triu((bits <= MOST_DIFFERENT) & (names[own][:, None] != names[own][None]), 1)
        for one, other in np.argwhere(near):
            found[int(own[one]), int(own[other])] = int(bits[one, other])
    pairs = [AlikePair(*pair, bits) for pair, bits in found.items() if _correlate(looks, *pair)]
    return sorted(pairs, key=lambda pair: (pair.bits, pair.first, pair.second))


def _bits_between(hashes: np.ndarray) -> np.ndarray:
    """In how many bits each of the hashes differs from each."""
    different = hashes[:, None] ^ hashes[None]
    parts = [(different >> np.uint64(shift)) & np.uint64(0xFFFF) for shift in (0, 16, 32, 48)]
    counts = np.stack([_POPCOUNT[part.astype(np.int64)] for part in parts])
    return counts.sum(axis=0, dtype=np.int64)


def _correlate(looks: Sequence[Look | None], first: int, second: int) -> bool:
    one, other = looks[first], looks[second]
    assert one is not None
    assert other is not None
    pair = [np.frombuffer(look.thumbnail, np.uint8).astype(np.float64) for look in (one, other)]
    return bool(np.asarray(np.corrcoef(pair))[0, 1] >= LEAST_CORRELATION)
