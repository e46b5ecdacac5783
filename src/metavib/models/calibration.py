"""When a model counts as unsure: what its uncertainty was like on source validation images.

The quantiles of the entropy there are kept with the model. A coverage of 0.9 puts the threshold where 90 % of
those images were answered: an image with more entropy than that is flagged. For images that are like the sources,
nine of ten are then answered; of a domain that was never seen, fewer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from metavib.algorithms.base import Algorithm
from metavib.core.errors import UserError
from metavib.core.plain_values import made
from metavib.core.shapes import Float
from metavib.models.measuring import Embedded, chunk_of, shared_noise
from metavib.models.results import Unsure

COVERAGE = 0.9  # where none is asked for
QUANTILES = 101  # one for each per cent
_ROUNDING = 1e-6  # thresholds are rounded up to it: an image is not flagged for the batch that it came in


@dataclass(frozen=True)
class Calibration:
    """The uncertainty of a model on source validation images."""

    images: int
    sampled: tuple[float, ...]  # quantiles of the total entropy in nats, by draws
    mean: tuple[float, ...]  # the same with every distribution at its mean
    class_distance: float | None  # the mean distance of their features to the mean of their own class

    def threshold(self, mode: str, coverage: float) -> float:
        """The entropy that a share of `coverage` of the images did not exceed; at the mean, unless sampled."""
        quantiles = self.sampled if mode == "sampled" else self.mean
        place = coverage * (len(quantiles) - 1)
        below = min(math.floor(place + 1e-9), len(quantiles) - 1)  # 0.29 * 100 is a little less than 29
        above = min(below + 1, len(quantiles) - 1)
        share = min(max(place - below, 0.0), 1.0)
        return quantiles[below] + share * (quantiles[above] - quantiles[below])


def check_coverage(coverage: float) -> None:
    """A coverage is a share of images that is more than none."""
    if not 0 < coverage <= 1:
        raise UserError(f"coverage = {coverage:g} must be above 0 and at most 1.")


@torch.no_grad()
def calibrate(algorithm: Algorithm, validation: Embedded) -> Calibration | None:
    """Quantiles and distances of these images; None where its answers are not finite.

    The draws are those that a predictor has by default, so that its coverage of these images is exact.
    """
    noise = shared_noise(algorithm, 0, validation.features.device)
    parts = validation.features.split(chunk_of(algorithm))
    sampled = torch.cat([algorithm.predictive(part, noise).entropy() for part in parts])
    mean = torch.cat([algorithm.predictive(part, None).entropy() for part in parts])
    if not (sampled.isfinite().all() and mean.isfinite().all()):
        return None
    return Calibration(
        len(validation.labels), quantiles(sampled), quantiles(mean), _class_distance(algorithm, validation)
    )


def quantiles(values: Float[Tensor, "images"]) -> tuple[float, ...]:
    """101 of them: at each per cent the smallest value that at least this share of the values is not above."""
    ordered = sorted(values.cpu().double().tolist())
    places = [max(0, -(-per_cent * len(ordered) // 100) - 1) for per_cent in range(QUANTILES)]
    return tuple(round(math.ceil(ordered[place] / _ROUNDING) * _ROUNDING, 6) for place in places)


@torch.no_grad()
def answered(algorithm: Algorithm, images: Embedded, calibration: Calibration) -> Unsure:
    """The share of images that is not unsure at the usual coverage, and the share of those that is right.

    `checked_on` is the number of validation images that the threshold rests on.
    """
    threshold = calibration.threshold("mean", COVERAGE)
    size = chunk_of(algorithm)
    sure, right = [], []
    for features, labels in zip(images.features.split(size), images.labels.split(size), strict=True):
        answer = algorithm.predictive(features, None)  # as a predictor answers by default
        sure.append(answer.entropy() <= threshold)
        right.append(answer.probabilities().argmax(dim=1) == labels)
    answers, hits = torch.cat(sure), torch.cat(sure) & torch.cat(right)
    count = int(answers.sum())
    return Unsure(
        coverage=COVERAGE,
        answered=count / len(images.labels),
        accuracy=int(hits.sum()) / count if count else None,
        checked_on=calibration.images,
    )


def calibration_from(record: Any) -> Calibration | None:
    """Read the calibration of a model's description; None where it has none. Raises ValueError if malformed."""
    if record is None:
        return None
    found = made(Calibration, record)
    if found.class_distance is not None and found.class_distance <= 0:
        raise ValueError("calibration holds no distance")
    for entropies in (found.sampled, found.mean):
        if len(entropies) != QUANTILES or list(entropies) != sorted(entropies):
            raise ValueError("calibration holds no quantiles")
    return found


def _class_distance(algorithm: Algorithm, validation: Embedded) -> float | None:
    means = algorithm.class_means()
    if means is None:
        return None
    distance = (validation.features - means[validation.labels]).norm(dim=1).cpu().double().mean().item()
    return distance if math.isfinite(distance) and distance > 0 else None
