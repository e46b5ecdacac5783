"""Calibration for a domain nobody has seen, measured on source domains that were left out.

Each source domain is left out in turn and answered by a head of the others, as it is and drifted, or by a model
that was trained without it (`left_out`). From those answers come a temperature, which may grow with the distance
from the sources, the thresholds of `unsure` and `foreign`, prediction sets, and the accuracy to expect. No image
of a target is seen. `calibrating` makes the record; here it is kept, and turned into answers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from metavib.core.errors import UserError
from metavib.core.plain_values import made
from metavib.core.shapes import Bool, Float
from metavib.models.feature_distance import DistanceRecord, FeatureDistance, contrast_of
from metavib.models.look import Look, LookRecord, Seen, place_of
from metavib.nn.watching import Place

VERSION = 4  # 1: drifts that break a model counted, folds were heads; 2: no looks; 3: looks by maps alone
FEWEST = 10  # answers that an error is taken from
MOST_OFF = 0.1  # of a coverage that is promised, on each source that was left out
HELD_BACK = 0.5  # the share of the error asked for that left-out domains may have: a new one is harder
MOSTLY = 0.75  # the share of what was tried that keeps it where an answer is as sure as was asked for
FARTHEST = 1e6  # the distance of an image that shows nothing
SURE_OF = 1e-30  # the least probability whose logarithm is taken


@dataclass(frozen=True)
class Tried:
    """Measurements of the answers on one left-out source domain, or on all of them with one drift."""

    images: int
    accuracy: float
    confidence: float  # on average
    distance: float  # the median
    foreign: float  # the share that would be called foreign
    answered: tuple[float, ...]  # the share of images that is as sure as each of the levels
    wrong: tuple[float, ...]  # the share of images that is, and is wrong

    def error(self, level: int) -> float | None:
        """The share of wrong answers at a level; None where there are too few answers to say."""
        if self.answered[level] * self.images < FEWEST:
            return None
        return self.wrong[level] / self.answered[level]


@dataclass(frozen=True)
class DomainCalibration:
    """The record in a model directory."""

    version: int
    left_out: dict[str, Tried]  # by source domain
    drifted: dict[str, Tried]  # by drift
    log_temperature: float
    by_distance: float  # what is added to it for each e-fold of the distance above 1
    distance: DistanceRecord
    levels: tuple[float, ...]  # of confidence, rising
    set_scores: dict[
        str, tuple[float, ...]
    ]  # of each source: conformal quantiles of 1 - p(label), in per cents
    foreign_above: float  # distance
    foreign_found: float | None  # the share of made-up images of nothing that lies above it
    forecast_deviation: float  # of the accuracy from the mean confidence, over all that was tried
    notes: tuple[str, ...] = ()  # what could not be had
    least_contrast: float = 0.0  # of an image that shows something, after normalisation
    folds: str = "heads"  # who answered: `heads` that were made again, or `whole` models without the domain
    look: LookRecord | None = None  # of source images of any class; None with fewer than three sources

    @property
    def images(self) -> int:
        """Left-out images that all rests on."""
        return sum(one.images for one in self.left_out.values())

    @property
    def tried(self) -> list[Tried]:
        """All domains that stand for a new one."""
        return [*self.left_out.values(), *self.drifted.values()]

    @property
    def expected_accuracy(self) -> Range:
        """On a new domain."""
        return Range.of([one.accuracy for one in self.tried])


@dataclass(frozen=True)
class Range:
    """A number over several domains."""

    mean: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Range:
        """Of these; there must be one."""
        return Range(statistics.fmean(values), min(values), max(values))

    def in_words(self) -> str:
        """The range in per cent, for people."""
        return f"{100 * self.mean:.1f} % ({100 * self.low:.1f} to {100 * self.high:.1f})"


@dataclass(frozen=True)
class Promise:
    """A threshold of confidence, what it was asked for, and what it did on left-out domains."""

    asked: str
    threshold: float  # an answer that is less sure is `unsure`; above 1 where nothing may be answered
    answered: Range
    error: Range | None  # of the answers; None where there are none
    kept: bool  # whether the folds show that it can be had
    images: int
    domains: int
    drifts: int = 0  # that were tried too

    def in_words(self) -> str:
        """The promise as a sentence."""
        error = "no answer" if self.error is None else f"{self.error.in_words()} of the answers wrong"
        text = (
            f"{self.asked}: measured on {self.domains} left-out source domains ({self.images:,} images"
            f"{', as they are and drifted' if self.drifts else ''}): {self.answered.in_words()} answered, {error}"
        )
        if self.kept:
            return text
        if self.threshold <= 1:
            return f"{text}. It cannot be promised: left-out sources were answered too unequally"
        return f"{text}. This cannot be had: no threshold kept it, with enough answers to say so"


def promise_error(record: DomainCalibration, most: float) -> Promise:
    """The lowest threshold at which at most half this share of answers was wrong, in every domain that was tried.

    From a confidence of 1 - this share on it is enough that three quarters of the domains kept that half: one that
    fools the model would silence it for all others. Half is held back because a domain that nobody has seen is
    harder. Where there is no threshold, nothing is answered. Nor where fewer answers than 1 / most show it: ten
    say nothing of one in a thousand.
    """
    check_share(most, "max-error")
    asked = f"at most {100 * most:g}% of the answers wrong"
    for level, confidence in enumerate(record.levels):
        told = [one.error(level) for one in record.tried]
        errors = sorted(error for error in told if error is not None)
        answers = sum(one.answered[level] * one.images for one in record.tried)
        if not errors or answers * most < 1:
            break
        counted = errors if confidence < 1 - most else errors[: math.ceil(MOSTLY * (len(errors) - 1)) + 1]
        if counted[-1] <= HELD_BACK * most:
            return _promise(record, asked, confidence, level, True)
    return _promise(record, asked, 2.0, None, False)


def promise_coverage(record: DomainCalibration, share: float) -> Promise:
    """The highest threshold at which this share was answered, on the mean of the harder half of what was tried.

    On a new domain too few answers are as usual as too many, and cost more. It cannot be promised where a source
    that was left out was answered by more than 10 points more or less often.
    """
    check_share(share, "coverage")
    found = 0
    for level in range(len(record.levels)):
        if _answered(record, level) >= share:
            found = level
    reached = _answered(record, found) >= share
    threshold = record.levels[found] if reached else 0.0
    off = max(abs(one.answered[found] - share) for one in record.left_out.values())
    kept = reached and off <= MOST_OFF + 1e-9
    return _promise(record, f"{100 * share:g}% answered", threshold, found, kept)


def promised_sets(record: DomainCalibration, share: float) -> float:
    """The largest 1 - p of a label in a set: the most cautious of the sources' conformal p-values.

    A label is in the set where the left-out images of one source at least, as they are and drifted, had labels as
    improbable in more than 1 - share of the cases.
    """
    check_share(share, "sets")
    per_cent = min(100, math.ceil(100 * share - 1e-9))
    return max(scores[per_cent] for scores in record.set_scores.values())


def pooled_sets(record: DomainCalibration, share: float) -> float:
    """The limit of 1 - p from all sources pooled: right on a usual new domain, too low on an unusual one."""
    check_share(share, "sets")
    per_cent = min(100, math.ceil(100 * share - 1e-9))
    return statistics.fmean(scores[per_cent] for scores in record.set_scores.values())


def check_share(share: float, name: str) -> None:
    """Raise UserError unless 0 < share <= 1."""
    if not 0 < share <= 1:
        raise UserError(f"{name} = {share:g} must be above 0 and at most 1 (100%).")


def _answered(record: DomainCalibration, level: int) -> float:
    """On the mean of the harder half of all that was tried."""
    shares = sorted(one.answered[level] for one in record.tried)
    return statistics.fmean(shares[: (len(shares) + 1) // 2])


def _promise(
    record: DomainCalibration, asked: str, threshold: float, level: int | None, kept: bool
) -> Promise:
    answered = [0.0 if level is None else one.answered[level] for one in record.tried]
    told = [] if level is None else [one.error(level) for one in record.tried]
    errors = [error for error in told if error is not None]
    return Promise(
        asked,
        threshold,
        Range.of(answered),
        Range.of(errors) if errors else None,
        kept,
        record.images,
        len(record.left_out),
        len(record.drifted),
    )


class Calibrator:
    """A record at work: calibrated probabilities, distances of images, and which are foreign."""

    def __init__(self, record: DomainCalibration, device: torch.device) -> None:
        self.record = record
        self.distance = FeatureDistance.from_record(record.distance).to(torch.zeros((), device=device))
        self.look = None if record.look is None else Look(record.look, device)

    @property
    def place(self) -> Place | None:
        """Where the network must be watched for looks."""
        return place_of(self.record.look)

    def looks(self, seen: Seen | None, like: Float[Tensor, "images"]) -> Float[Tensor, "images"]:
        """How unlike source images these look: above 1 they are of another kind; 0 where nothing is known."""
        if self.look is None or seen is None:
            return torch.zeros_like(like)
        return self.look(seen).to(like)

    def foreign(
        self, distances: Float[Tensor, "images"], looks: Float[Tensor, "images"]
    ) -> Bool[Tensor, "images"]:
        """Images that are far from every class, or that look like no source image."""
        return (distances > self.record.foreign_above) | (looks > 1)

    def distances(
        self, features: Float[Tensor, "images features"], images: Tensor | None = None
    ) -> Float[Tensor, "images"]:
        """From the nearest class of the sources; 1 is usual. An image that shows nothing is as far as can be."""
        found = self.distance(features.to(self.distance.means.dtype))
        if images is None or self.record.least_contrast <= 0:
            return found
        return torch.where(contrast_of(images) < self.record.least_contrast, FARTHEST, found)

    def probabilities(
        self, given: Float[Tensor, "*draws images classes"], distances: Float[Tensor, "images"]
    ) -> Float[Tensor, "*draws images classes"]:
        """softmax(log p / T(d)): the same labels, as sure as they deserve on a new domain."""
        return tempered(
            given.clamp_min(SURE_OF).log(), distances, self.record.log_temperature, self.record.by_distance
        )


def tempered(
    log_probabilities: Float[Tensor, "*draws images classes"],
    distances: Float[Tensor, "images"],
    log_temperature: float | Tensor,
    by_distance: float | Tensor,
) -> Float[Tensor, "*draws images classes"]:
    """softmax(log p / T), with log T = a + b max(0, log d), kept between -3 and 5."""
    log_t = log_temperature + by_distance * distances.clamp(1.0, 1e6).log()
    scaled = log_probabilities / log_t.clamp(-3.0, 5.0).exp().unsqueeze(-1)
    return scaled.softmax(dim=-1)


def domain_calibration_from(record: Any, classes: int) -> DomainCalibration | None:
    """Read the record of a model's description; None where there is none. Raises ValueError if malformed."""
    if record is None:
        return None
    if not isinstance(record, dict) or type(record.get("version")) is not int:
        raise ValueError("domain_calibration has no version")
    if record["version"] > VERSION:
        raise ValueError("domain_calibration is of a newer version of metavib: upgrade, or calibrate again")
    found = made(DomainCalibration, record)
    levels = len(found.levels)
    if (
        not found.left_out
        or not found.set_scores
        or levels == 0
        or list(found.levels) != sorted(found.levels)
    ):
        raise ValueError("domain_calibration holds no left-out domains or no levels")
    for one in found.tried:
        if len(one.answered) != levels or len(one.wrong) != levels or one.images < 1:
            raise ValueError("domain_calibration holds curves of other lengths")
    if any(len(scores) != 101 or list(scores) != sorted(scores) for scores in found.set_scores.values()):
        raise ValueError("domain_calibration holds no quantiles")
    distance = FeatureDistance.from_record(found.distance)
    if found.look is not None:
        texture = found.look.texture
        Look(found.look, torch.device("cpu"))
        if min(found.look.above, 1.0 if texture is None else texture.above) <= 0 or found.look.call < 0:
            raise ValueError("domain_calibration holds a look without a threshold")
    if found.folds not in ("heads", "whole") or found.least_contrast < 0:
        raise ValueError("domain_calibration is of folds that are not known, or has a negative contrast")
    if len(distance.means) > classes:
        raise ValueError("domain_calibration knows more classes than the model")
    return found
