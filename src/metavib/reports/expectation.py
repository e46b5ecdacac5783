"""Expectations for a new domain: how often a method is right, how often it answers, how often that is wrong."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from metavib.core.errors import UserError
from metavib.models.calibration import COVERAGE
from metavib.models.directory import description_of
from metavib.models.domain_calibration import DomainCalibration, Promise, Range, promise_coverage
from metavib.reports.judged import Judged
from metavib.reports.tables import runs_by_row
from metavib.reports.verdicts import Verdicts
from metavib.runs.records import Group, RunRecord

DEVIATIONS = 1.96  # of an interval of one run: 95 % where errors are normal


@dataclass(frozen=True)
class Answering:
    """The answers of one run on its unseen domain, counted."""

    answered: float  # the share of images
    wrong: float | None  # the share of those answers; None where there are none
    images: int


@dataclass(frozen=True)
class Stated:
    """Statements of calibrations across domains, made without an image of the unseen domain."""

    accuracy: Range
    answered: Range
    wrong: Range | None


@dataclass(frozen=True)
class Expectation:
    """One method: a row of the first table."""

    title: str
    accuracy: Range | None  # in shares
    how: str  # where the interval comes from
    answered: Range | None
    wrong: Range | None
    by: str  # where thresholds come from
    stated: Stated | None
    peeks: bool = False
    all_domains: bool = False  # the model itself has no unseen domain

    @property
    def sentence(self) -> str:
        """For people who read one line only."""
        if self.accuracy is None:
            return f"{self.title}: nothing was measured on an unseen domain."
        text = (
            f"On a domain that it never saw, {self.title} is right about {100 * self.accuracy.mean:.0f} images "
            f"of 100 ({interval(self.accuracy)} %: {self.how})."
        )
        if self.answered is None:
            return text
        text += f" It gives a plain answer to {100 * self.answered.mean:.0f} of 100"
        if self.wrong is None:
            return f"{text}."
        return f"{text}; {100 * self.wrong.mean:.0f} % of those answers are wrong."


def interval(range_: Range) -> str:
    """The ends, in per cent."""
    return f"{100 * range_.low:.1f} to {100 * range_.high:.1f}"


def expectations_of(group: Group, judged: Sequence[Judged] = ()) -> list[Expectation]:
    """A row for each method, then one for each model that was trained on all domains.

    What a model was asked (`judged`) says more than its record: it may have been calibrated since.
    """
    asked = {one.run.directory.path: one for one in judged if one.verdicts is not None}
    rows = [_row(title, runs, asked) for title, runs in runs_by_row(group.held_out).items()]
    return [*rows, *(_final(run) for run in group.final)]


def headline(rows: Sequence[Expectation]) -> Expectation | None:
    """The row that the first sentence is about: MetaVIB's, else the first; never one that peeks."""
    fair = [row for row in rows if not row.peeks]
    return next((row for row in fair if row.title.startswith("MetaVIB")), fair[0] if fair else None)


def _row(title: str, runs: Sequence[RunRecord], asked: Mapping[Path, Judged]) -> Expectation:
    accuracy, how = _accuracy(runs)
    found = [one for run in runs if (one := _answering(run, asked)) is not None]
    told = [one for one in found if one.answered * one.images > 0 and one.wrong is not None]
    wrong = None
    if told:
        answers = sum(one.answered * one.images for one in told)
        errors = sum(one.answered * one.images * (one.wrong or 0.0) for one in told)
        every = [one.wrong for one in told if one.wrong is not None]
        wrong = Range(errors / answers, min(every), max(every))
    said = [verdicts for run in runs if (verdicts := _verdicts(run, asked)) is not None]
    whole = [(one.calibration, one.promise) for one in said if one.calibration and one.promise]
    sources = f"source validation images, of which {COVERAGE:.0%} are answered"
    return Expectation(
        title,
        accuracy,
        how,
        Range.of([one.answered for one in found]) if found else None,
        wrong,
        "source domains that were left out" if whole and len(whole) == len(found) else sources,
        _stated(whole) if whole and len(whole) == len(found) else None,
        peeks=runs[0].experiment.training.selection == "oracle",
    )


def _accuracy(runs: Sequence[RunRecord]) -> tuple[Range | None, str]:
    """Over domains, of which each counts once; of one domain over seeds, of one run by chance alone."""
    by_target: dict[str, list[float]] = {}
    images = 0
    for run in runs:
        mean = None if run.results.unseen is None else run.results.unseen.mean("accuracy")
        if run.results.unseen is not None and mean is not None:
            by_target.setdefault(run.target, []).append(mean)
            images = run.results.unseen.images
    if not by_target:
        return None, "not measured"
    if len(by_target) > 1:
        means = [statistics.fmean(values) for values in by_target.values()]
        return Range.of(means), f"the hardest to the easiest of {len(means)} held-out domains"
    (values,) = by_target.values()
    if len(values) > 1:
        return Range.of(values), f"one held-out domain, {len(values)} runs; others may be harder"
    (value,) = values
    low, high = wilson(value, images)
    return Range(value, low, high), "one run on one held-out domain; others may be harder"


def wilson(share: float, images: int) -> tuple[float, float]:
    """The interval in which a share of so many images is by chance (Wilson 1927), at 95 %."""
    square = DEVIATIONS**2 / images
    middle = (share + square / 2) / (1 + square)
    wide = math.sqrt(share * (1 - share) * square + square**2 / 4) / (1 + square)
    return max(0.0, middle - wide), min(1.0, middle + wide)


def _verdicts(run: RunRecord, asked: Mapping[Path, Judged]) -> Verdicts | None:
    one = asked.get(run.directory.path)
    return None if one is None else one.verdicts


def _answering(run: RunRecord, asked: Mapping[Path, Judged]) -> Answering | None:
    verdicts = _verdicts(run, asked)
    if verdicts is not None and verdicts.answered is not None:
        answered = verdicts.answered
        count = int(answered.sum())
        wrong = int((answered & ~verdicts.right).sum()) / count if count else None
        return Answering(count / len(answered), wrong, len(answered))
    unsure, unseen = run.results.unsure, run.results.unseen
    if unsure is None or unseen is None:
        return None
    return Answering(unsure.answered, None if unsure.accuracy is None else 1 - unsure.accuracy, unseen.images)


def _stated(found: Sequence[tuple[DomainCalibration, Promise]]) -> Stated:
    """The statements of all models of a method, taken together."""
    errors = [promise.error for _, promise in found if promise.error is not None]
    return Stated(
        _range_over([record.expected_accuracy for record, _ in found]),
        _range_over([promise.answered for _, promise in found]),
        _range_over(errors) if errors else None,
    )


def _range_over(ranges: Sequence[Range]) -> Range:
    return Range(
        statistics.fmean(one.mean for one in ranges),
        min(one.low for one in ranges),
        max(one.high for one in ranges),
    )


def _final(run: RunRecord) -> Expectation:
    """A model of all domains: what runs that held one out found, and what its calibration states."""
    expected, accuracy, how = run.results.expected, None, "no domain was held out"
    if expected is not None:
        accuracy = Range.of([one.accuracy for one in expected.domains.values()])
        how = f"of {expected.runs} runs that held out one of {len(expected.domains)} domains"
    try:
        record = description_of(run.directory.path).domain_calibration
    except UserError:
        record = None
    stated = None if record is None else _stated([(record, promise_coverage(record, COVERAGE))])
    title = f"{run.title}, all domains, seed {run.experiment.seed}"
    by = "" if stated is None else "source domains that were left out"
    return Expectation(title, accuracy, how, None, None, by, stated, all_domains=True)
