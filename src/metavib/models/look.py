"""How unlike every source image an image looks, whatever class it shows.

The last features tell classes apart, and noise may lie among them. What an image is made of (lines, grain, colour)
stands in the image itself, as how much it varies at each scale (`nn.texture`), and in the maps of a middle stage,
as the mean and deviation of each channel there. Of each there is one Gaussian over all source images. What is
farther from either than images of left-out sources are is no image of this kind. Networks for small images, as
of digits, have no such stage: there the image alone tells.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from metavib.algorithms.base import Algorithm
from metavib.core.shapes import Float
from metavib.models.feature_distance import DistanceRecord, FeatureDistance, fitted_distance
from metavib.nn.texture import texture_of
from metavib.nn.watching import Place, watched

USUAL_MAPS, USUAL_TEXTURE = 0.95, 0.99  # the share of a left-out source's images that looks usual
FEWEST = 10  # images of a source by which its look is known
FEWEST_SOURCES = 3  # of two, one alone would say how far the other may look: so a new style was foreign
NO_MAPS = Place("", 0)  # of a network that has no stage to be watched: the image alone is looked at


class Seen(NamedTuple):
    """What is seen of images on their way to the features."""

    texture: Float[Tensor, "images statistics"]
    maps: Float[Tensor, "images channels"] | None

    @staticmethod
    def joined(parts: list[Seen]) -> Seen:
        """Of all batches, on the CPU."""
        maps = [one.maps for one in parts if one.maps is not None]
        return Seen(torch.cat([one.texture for one in parts]).cpu(), torch.cat(maps).cpu() if maps else None)


Passed = tuple[Tensor, Seen | None]  # features of images, and what is seen on the way


@dataclass(frozen=True)
class Usual:
    """How far the images of the sources lie from one Gaussian over all of them."""

    distance: DistanceRecord  # from one class: all source images
    above: float  # such a distance is of no image of this kind


@dataclass(frozen=True)
class LookRecord:
    """`Look` as a model directory keeps it."""

    module: str  # of the backbone, that gives the maps; "" where there are none
    call: int
    distance: DistanceRecord | None  # by maps
    above: float
    left_out: dict[str, float]  # the share of each source that looks foreign, by the others
    texture: Usual | None = None  # None in records of version 3


class Look:
    """A record at work: an image whose look is above 1 is no image of this kind."""

    def __init__(self, record: LookRecord, device: torch.device) -> None:
        like = torch.zeros((), device=device)
        self.maps = self.texture = None
        if record.distance is not None:
            self.maps = FeatureDistance.from_record(record.distance).to(like), record.above
        if record.texture is not None:
            self.texture = FeatureDistance.from_record(record.texture.distance).to(like), record.texture.above

    def __call__(self, seen: Seen) -> Float[Tensor, "images"]:
        """The larger of the distances of texture and maps, as a share of what is usual for a new domain."""
        found = torch.zeros_like(seen.texture[:, 0])
        for known, given in ((self.maps, seen.maps), (self.texture, seen.texture)):
            if known is not None and given is not None:
                distance, above = known
                found = torch.maximum(found, distance(given.to(distance.means)).to(found) / above)
        return found


def place_of(record: LookRecord | None) -> Place | None:
    """Where a network must be watched; None where nothing is known of looks."""
    return None if record is None else Place(record.module, record.call)


def embedded_with_look(
    algorithm: Algorithm, images: Float[Tensor, "images channels height width"], place: Place | None
) -> Passed:
    """The features that `embed` gives of normalised images, and what is seen on the way."""
    with watched(algorithm.backbone, None if place == NO_MAPS else place) as maps:
        embedded = algorithm.embed(images)
    return embedded, None if place is None else Seen(texture_of(images), maps[0] if maps else None)


def fault_of_look(
    algorithm: Algorithm, images: Float[Tensor, "images channels height width"], record: LookRecord
) -> str | None:
    """Why a network does not have the maps that a record was made of, in words."""
    try:
        _, seen = embedded_with_look(algorithm, images, place_of(record))
        Look(record, images.device)(seen) if seen else None
        fits = seen is not None and (seen.maps is None) == (record.distance is None)
    except (AttributeError, IndexError, RuntimeError):
        fits = False
    return None if fits else f"its calibration is of maps that the network lacks ({record.module!r:.50})"


def fitted_look(place: Place, by_domain: Mapping[str, Seen]) -> LookRecord | None:
    """From images of each source; None where too few are known.

    Each source is left out in turn. A distance from the others says how far 95 of 100 of its images reach by their
    maps, and 99 of 100 by their texture, in medians of the others. The threshold is the geometric mean of these
    reaches; but so many images of the sources lie below it in any case. Every second image is for the distance,
    the others are for the reach.
    """
    known = {name: own for name, own in by_domain.items() if len(own.texture) >= FEWEST}
    if len(known) < FEWEST_SOURCES:
        return None
    texture = Reaches.of({name: own.texture for name, own in known.items()})
    maps = {name: own.maps for name, own in known.items() if own.maps is not None}
    by_maps = Reaches.of(maps) if maps else None
    of_texture = texture.above(USUAL_TEXTURE)
    of_maps = 1.0 if by_maps is None else by_maps.above(USUAL_MAPS)
    called = {}
    for name, own in texture.far.items():
        strange = own > of_texture
        if by_maps is not None:
            strange = strange | (by_maps.far[name] > of_maps)
        called[name] = strange.double().mean().item()
    distance = None if by_maps is None else by_maps.distance.record()
    return LookRecord(*place, distance, of_maps, called, Usual(texture.distance.record(), of_texture))


class Reaches(NamedTuple):
    """One Gaussian over all sources, and how far images lie from it that it was not fitted to."""

    distance: FeatureDistance
    far: dict[str, Float[Tensor, "images"]]  # of each source, by the Gaussian of the others
    near: Float[Tensor, "images"]  # of all sources, by their own

    @staticmethod
    def of(by_domain: Mapping[str, Tensor]) -> Reaches:
        """Of statistics of images of each source."""
        far = {}
        for left_out, own in by_domain.items():
            from_others = _distance([other for name, other in by_domain.items() if name != left_out])
            far[left_out] = from_others(own[1::2])
        distance = _distance(list(by_domain.values()))
        return Reaches(distance, far, distance(torch.cat([own[1::2] for own in by_domain.values()])))

    def above(self, usual: float) -> float:
        """The distance of no image of this kind, if this share of a new source is to look usual."""
        reaches = [math.log(_reach(own, usual)) for own in self.far.values()]
        return max(math.exp(statistics.fmean(reaches)), _reach(self.near, usual))


def _distance(parts: list[Tensor]) -> FeatureDistance:
    fit, unit = (torch.cat([own[start::2] for own in parts]) for start in (0, 1))
    return fitted_distance(fit, torch.zeros(len(fit), dtype=torch.long), unit)


def _reach(distances: Tensor, usual: float) -> float:
    return max(torch.quantile(distances.double(), usual).item(), 1e-6)
