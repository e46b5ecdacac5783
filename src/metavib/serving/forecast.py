"""The accuracy to expect on a folder of images without labels, and the most doubtful of them."""

from __future__ import annotations

import heapq
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from metavib.core.errors import UserError
from metavib.data.decoding.images import BadImage
from metavib.serving.predictor import BATCH, Predictor

MOST_DOUBTFUL = 24
DEVIATIONS = 1.96  # of an interval: 95 % where errors are normal
MOSTLY = 0.5  # the share of foreign images above which a forecast means little


@dataclass(frozen=True)
class Doubtful:
    """One image that the model is not sure of."""

    name: str
    label: str
    probability: float
    foreign: bool
    pixels: np.ndarray  # uint8 [channels, size, size]


@dataclass(frozen=True)
class Forecast:
    """The accuracy to expect of the model on these images."""

    images: int
    unreadable: int
    accuracy: float  # expected
    low: float
    high: float
    unsure: float  # the share of images
    foreign: float
    distance: float  # the median from the sources; 1 is usual for them
    left_out_distances: tuple[float, float]  # the least and the largest of source domains that were left out
    doubtful: tuple[Doubtful, ...]  # the most doubtful first

    @property
    def means_little(self) -> bool:
        """Whether most of the images are like nothing that the model knows."""
        return self.foreign > MOSTLY


def forecast(predictor: Predictor, names: Iterable[str]) -> Forecast:
    """The mean of the calibrated confidence, with an interval from left-out domains; images are read once.

    The interval is 1.96 deviations wide to each side: those of the accuracy from the mean confidence over all
    domains that were tried in calibration, and the binomial's.
    """
    if predictor.assurance is None:
        raise UserError(
            "a forecast needs a calibration across domains, which this model lacks. Run metavib calibrate on "
            "its run directory first."
        )
    confidence: list[float] = []
    distances: list[float] = []
    unsure = foreign = unreadable = 0
    least: list[tuple[float, int, Doubtful]] = []
    opened = _opened(predictor, names)
    while batch := list(itertools.islice(opened, BATCH)):
        known = [(name, pixels) for name, pixels in batch if pixels is not None]
        unreadable += len(batch) - len(known)
        if not known:
            continue
        found = predictor.classify(np.stack([pixels for _, pixels in known]), classifiers=False).checked()
        assert found.unsure is not None
        assert found.foreign is not None
        assert found.from_sources is not None
        unsure += int(found.unsure.sum())
        foreign += int(found.foreign.sum())
        distances += found.from_sources.tolist()
        for (name, pixels), one in zip(known, found, strict=True):
            doubtful = Doubtful(name, one.label, one.probability, bool(one.foreign), pixels)
            heapq.heappush(least, (-one.probability, -len(confidence), doubtful))
            if len(least) > MOST_DOUBTFUL:
                heapq.heappop(least)
            confidence.append(one.probability)
    if not confidence:
        raise UserError(f"none of the {unreadable} files could be read: there is nothing to forecast.")
    record = predictor.assurance.record
    mean, count = statistics.fmean(confidence), len(confidence)
    wide = DEVIATIONS * math.sqrt(record.forecast_deviation**2 + mean * (1 - mean) / count)
    usual = [one.distance for one in record.left_out.values()]
    return Forecast(
        images=count,
        unreadable=unreadable,
        accuracy=mean,
        low=max(0.0, mean - wide),
        high=min(1.0, mean + wide),
        unsure=unsure / count,
        foreign=foreign / count,
        distance=statistics.median(distances),
        left_out_distances=(min(usual), max(usual)),
        doubtful=tuple(one for _, _, one in sorted(least, key=lambda each: each[:2], reverse=True)),
    )


def _opened(predictor: Predictor, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray | None]]:
    for name in names:
        try:
            yield name, predictor.open(name)
        except BadImage:
            yield name, None
