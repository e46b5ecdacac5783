"""The meaning of an image file's values: their depth, and which of them are black and white.

An 8-bit file says it itself: 0 is black and 255 is white. A deep one (16 or 32 bits, or floats) does not: a
12-bit camera writes 0 to 4095 into 16 bits. So the range is found in the files that a model learns from
(`range_finding`), and everything that the model sees later is scaled by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from metavib.core.shapes import Num, UInt8

EIGHT_BIT, SIXTEEN_BIT, THIRTY_TWO_BIT, FLOAT = DEPTHS = ("8-bit", "16-bit", "32-bit", "float")
ANY_DEPTH = "any"
FEW_LEVELS = 64  # two bits less than the 256 that a byte has
_AT_A_TIME = 1 << 20  # values that are scaled at once: float64 takes eight times their memory


class Extremes(NamedTuple):
    """The smallest and the largest value of one file or of many."""

    low: float
    high: float

    def joined(self, other: Extremes) -> Extremes:
        return Extremes(min(self.low, other.low), max(self.high, other.high))


class Scaled(NamedTuple):
    """Values as bytes, and whether any of them lay beyond the range."""

    pixels: UInt8[np.ndarray, "..."]
    clipped: bool


@dataclass(frozen=True)
class PixelRange:
    """The depth of image files, and the values that become 0 (black) and 255 (white)."""

    depth: str  # one of DEPTHS
    low: float
    high: float

    @property
    def deep(self) -> bool:
        """Whether values are scaled at all."""
        return self.depth in (SIXTEEN_BIT, THIRTY_TWO_BIT, FLOAT)

    @property
    def in_words(self) -> str:
        """Such images, as "16-bit images with values 0 to 4,095"."""
        values = f" with values {number(self.low)} to {number(self.high)}" if self.deep else ""
        return f"{self.depth} images{values}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def scaled(self, values: Num[np.ndarray, "..."]) -> Scaled:
        """Values as bytes: low is 0, high is 255, and what lies beyond is clipped. NaN is 0."""
        if values.dtype == np.uint16:
            table = self._in_bytes(np.arange(1 << 16))
            clipped = bool(values.min() < self.low or values.max() > self.high)
            return Scaled(table[values], clipped)
        flat = values.reshape(-1)
        pixels, clipped = np.empty(flat.shape, dtype=np.uint8), False
        for start in range(0, len(flat), _AT_A_TIME):
            some = flat[start : start + _AT_A_TIME]
            pixels[start : start + _AT_A_TIME] = self._in_bytes(some)
            clipped |= bool(((some < self.low) | (some > self.high)).any())
        return Scaled(pixels.reshape(values.shape), clipped)

    def _in_bytes(self, values: np.ndarray) -> np.ndarray:
        within = np.nan_to_num(values.astype(np.float64), nan=self.low).clip(self.low, self.high)
        return np.rint((within - self.low) * (255.0 / (self.high - self.low))).astype(np.uint8)


BYTES = PixelRange(EIGHT_BIT, 0.0, 255.0)
# Models of versions that did not look for a range: files of any depth, whole numbers by 65,535 and floats by 1.
OLDER = PixelRange(ANY_DEPTH, 0.0, 65535.0)


def covering(depth: str, found: Extremes) -> PixelRange:
    """The range of files with these extremes.

    Black is 0, or the smallest value where there are negative ones. White of whole numbers is 2^bits - 1, for the
    bits that the largest value takes: so it does not depend on which image happens to be the brightest. White of
    floats is 1 where none is larger. Otherwise white is the largest value.
    """
    if depth == EIGHT_BIT:
        return BYTES
    low, high = min(0.0, float(found.low)), float(found.high)
    if low < 0:
        return PixelRange(depth, low, high if high > low else 0.0)
    if depth == FLOAT:
        return PixelRange(depth, low, max(high, 1.0))
    return PixelRange(depth, low, float(2 ** max(1, int(found.high).bit_length()) - 1))


def require_valid(found: PixelRange) -> None:
    """ValueError where a range that was read from a record scales nothing."""
    if found.depth not in DEPTHS or not found.low < found.high or not math.isfinite(found.high - found.low):
        raise ValueError(f"pixel_range cannot be {found!r:.100}")


def narrow(pixel_range: PixelRange, domains: Iterable[tuple[str, Extremes]]) -> list[str]:
    """A line for each domain that uses so little of the range that most grey levels are lost."""
    found = []
    for domain, (low, high) in domains:
        levels = 1 + round(255 * (high - low) / (pixel_range.high - pixel_range.low))
        if high > low and levels < FEW_LEVELS:
            found.append(
                f"domain {domain!r} uses values {number(low)} to {number(high)} only, of "
                f"{number(pixel_range.low)} to {number(pixel_range.high)}: {levels} grey levels are left of "
                "it. Where its values mean something else than those of other domains, rescale its files."
            )
    return found


def number(value: float) -> str:
    """A value as people write it: 65,535 and 0.25."""
    return f"{value:,.10g}"
