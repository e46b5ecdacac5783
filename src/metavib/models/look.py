"""How unlike every source image an image looks, whatever class it shows.

The last features tell classes apart, and noise may lie among them. What an image is made of (lines, grain, colour)
stands in the maps of a middle stage: the mean and deviation of each channel there, and one Gaussian over those of
all source images. What is farther from it than images of left-out sources are is no image of this kind.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from metavib.algorithms.base import Algorithm
from metavib.core.shapes import Float
from metavib.models.feature_distance import DistanceRecord, FeatureDistance, fitted_distance
from metavib.nn.watching import Place, watched

USUAL = 0.95  # the share of a left-out source's images that looks usual
FEWEST = 10  # images of a source by which its look is known
FEWEST_SOURCES = (
    3  # of two, one alone would say how far the other may look: a new style was called foreign so
)

Passed = tuple[Tensor, Tensor | None]  # features of images, and the statistics of their maps


@dataclass(frozen=True)
class LookRecord:
    """`Look` as a model directory keeps it."""

    module: str  # of the backbone, that gives the maps
    call: int
    distance: DistanceRecord  # from one class: all source images
    above: float  # such a distance is of no image of this kind
    left_out: dict[str, float]  # the share of each source that lies above it, by the distance from the others


class Look:
    """A record at work: an image whose look is above 1 is no image of this kind."""

    def __init__(self, record: LookRecord, device: torch.device) -> None:
        self.above = record.above
        self.distance = FeatureDistance.from_record(record.distance).to(torch.zeros((), device=device))

    def __call__(self, seen: Float[Tensor, "images statistics"]) -> Float[Tensor, "images"]:
        """The distance of the maps from those of source images, as a share of what is usual for a new domain."""
        return self.distance(seen.to(self.distance.means)) / self.above


def place_of(record: LookRecord | None) -> Place | None:
    """Where a network must be watched; None where nothing is known of looks."""
    return None if record is None else Place(record.module, record.call)


def embedded_with_look(
    algorithm: Algorithm, images: Float[Tensor, "images channels height width"], place: Place | None
) -> Passed:
    """The features that `embed` gives, and the statistics of the maps on the way."""
    with watched(algorithm.backbone, place) as seen:
        embedded = algorithm.embed(images)
    return embedded, seen[0] if seen else None


def fault_of_look(
    algorithm: Algorithm, images: Float[Tensor, "images channels height width"], record: LookRecord
) -> str | None:
    """Why a network does not have the maps that a record was made of, in words."""
    try:
        _, seen = embedded_with_look(algorithm, images, place_of(record))
        fits = seen is not None and seen.shape[1] == record.distance.means.shape[1]
    except (AttributeError, IndexError, RuntimeError):
        fits = False
    return None if fits else f"its calibration is of maps that the network lacks ({record.module!r:.50})"


def fitted_look(
    place: Place, by_domain: Mapping[str, Float[Tensor, "images statistics"]]
) -> LookRecord | None:
    """From images of each source; None where too few are known.

    Each source is left out in turn. A distance from the others says how far 95 of 100 of its images reach, in
    medians of the others. The threshold is the geometric mean of these reaches; but 95 of 100 images of the
    sources lie below it in any case. Every second image is for the distance, the others are for the reach.
    """
    known = {name: own for name, own in by_domain.items() if len(own) >= FEWEST}
    if len(known) < FEWEST_SOURCES:
        return None
    far: dict[str, Tensor] = {}
    for left_out, own in known.items():
        from_others = _distance([other for name, other in known.items() if name != left_out])
        far[left_out] = from_others(own[1::2])
    distance = _distance(list(known.values()))
    inside = _reach(distance(torch.cat([own[1::2] for own in known.values()])))
    above = max(math.exp(statistics.fmean(math.log(_reach(own)) for own in far.values())), inside)
    called = {name: (own > above).double().mean().item() for name, own in far.items()}
    return LookRecord(*place, distance.record(), above, called)


def _distance(parts: list[Tensor]) -> FeatureDistance:
    fit, unit = (torch.cat([own[start::2] for own in parts]) for start in (0, 1))
    return fitted_distance(fit, torch.zeros(len(fit), dtype=torch.long), unit)


def _reach(distances: Tensor) -> float:
    return max(torch.quantile(distances.double(), USUAL).item(), 1e-6)
