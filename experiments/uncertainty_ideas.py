"""Ideas for errors, sets and temperatures, tried on domains that are hidden from training and from calibration.

    metavib train ... --target S --without T --out runs/pairs  # for several pairs, as in uncertainty_answers.py
    python experiments/uncertainty_answers.py answers/pairs runs/pairs
    python experiments/uncertainty_ideas.py results/uncertainty-ideas.json answers/pairs

Each run hides two domains and is judged on S: no rule is chosen by a target. A row an idea. An error counts as
kept at 7 % where 5 % was asked, a set as right within 3 points of 90 %.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from uncertainty import Kept, calibrated, opened, record_of

from metavib.core import atomic
from metavib.models.calibrating import fitted_map
from metavib.models.domain_calibration import DomainCalibration, promise_error, tempered
from metavib.models.left_out import Answers, LeftOut
from metavib.models.measures import MEASURES
from metavib.models.metrics import scored
from metavib.models.selective import oracle_coverage

ASKED, SHARE, ENOUGH = 0.05, 0.9, 0.03


def lowest(record: DomainCalibration, holds: Callable[[float, list[float]], bool]) -> float:
    """The lowest confidence at which a rule holds, given the errors of all that was tried, least first."""
    for level, confidence in enumerate(record.levels):
        errors = sorted(x for x in (one.error(level) for one in record.tried) if x is not None)
        answers = sum(one.answered[level] * one.images for one in record.tried)
        if not errors or answers * ASKED < 1:
            break
        if holds(confidence, errors):
            return confidence
    return 2.0


ERRORS: dict[str, Callable[[float, list[float]], bool]] = {
    "the mean keeps it, from 1 - .6 E on": lambda sure, errors: (
        errors[-1] <= ASKED or (sure >= 1 - 0.6 * ASKED and statistics.fmean(errors) <= ASKED)
    ),
    "the mean keeps it, from 1 - E on": lambda sure, errors: (
        errors[-1] <= ASKED or (sure >= 1 - ASKED and statistics.fmean(errors) <= ASKED)
    ),
    "every domain keeps it": lambda sure, errors: errors[-1] <= ASKED,
    "every domain keeps half of it": lambda sure, errors: errors[-1] <= ASKED / 2,
    "three quarters keep a fifth of it, from 1 - E on": lambda sure, errors: (
        errors[-1 if sure < 1 - ASKED else math.ceil(0.75 * (len(errors) - 1))] <= ASKED / 5
    ),
}


def of_errors(record: DomainCalibration, unseen: Answers) -> Iterator[tuple[str, dict[str, float]]]:
    """The share of wrong answers, and of answers, by each rule."""
    probabilities = calibrated(record, unseen)
    confidence, right = probabilities.max(dim=1).values, probabilities.argmax(dim=1) == unseen.labels
    oracle = oracle_coverage(confidence, right, ASKED).item()
    rules = {"three quarters keep half of it, from 1 - E on (as is)": promise_error(record, ASKED).threshold}
    rules |= {name: lowest(record, holds) for name, holds in ERRORS.items()}
    for name, threshold in rules.items():
        sure = confidence >= threshold - 1e-6
        wrong = (sure & ~right).sum().item() / max(1, int(sure.sum()))
        yield name, {"wrong": wrong, "answered": sure.double().mean().item(), "oracle": oracle}


def of_sets(
    record: DomainCalibration, left_out: LeftOut, unseen: Answers
) -> Iterator[tuple[str, dict[str, float]]]:
    """The share of labels that sets hold, by each limit of the score of a label."""
    given = calibrated(record, unseen)
    top = given == given.max(dim=1, keepdim=True).values
    every = {
        name: Answers.joined([own, *(by_domain[name] for by_domain in left_out.drifted.values())])
        for name, own in left_out.clean.items()
    }
    for kind, score in (("1 - p", lambda p: 1 - p), ("cumulated", cumulated)):
        limits = sorted(_limit(score(calibrated(record, own)), own) for own in every.values())
        clean = [_limit(score(calibrated(record, own)), own) for own in left_out.clean.values()]
        joined = Answers.joined(list(every.values()))
        of_unseen = score(given)
        for name, limit in {
            "the largest over sources": limits[-1],
            "the second largest": limits[-2],
            "the mean": statistics.fmean(limits),
            "all images joined": _limit(score(calibrated(record, joined)), joined),
            "the largest, without drifts": max(clean),
            "the median, without drifts": statistics.median(clean),
        }.items():
            yield f"{kind}: {name}", _held((of_unseen <= limit + 1e-9) | top, unseen)
            if name == "the largest over sources":
                yield f"{kind}: {name}, may be empty", _held(of_unseen <= limit + 1e-9, unseen)
    ordered, place = (1 - given).flatten().sort()
    mass = given.flatten()[place].cumsum(0) / len(given)
    limit = ordered[min(int((mass < SHARE).sum()), len(ordered) - 1)].item()
    yield "1 - p: the folder's mean probability is .9", _held((1 - given <= limit) | top, unseen)


def cumulated(probabilities: Tensor) -> Tensor:
    """Of each label: the probability of all likelier ones, and half of its own (APS)."""
    ordered, place = probabilities.sort(dim=1, descending=True)
    return torch.zeros_like(probabilities).scatter(1, place, ordered.cumsum(1) - ordered / 2)


def _limit(scores: Tensor, answers: Answers) -> float:
    """The conformal quantile of the labels' scores."""
    ordered, place = scores.gather(1, answers.labels[:, None])[:, 0].sort()
    below = answers.weights[place].cumsum(0)
    found = int((below < (below[-1] + 1) * SHARE - 1e-9).sum())
    return ordered[found].item() if found < len(ordered) else 1.0


def _held(held: Tensor, unseen: Answers) -> dict[str, float]:
    return {
        "covered": held.gather(1, unseen.labels[:, None]).double().mean().item(),
        "size": held.sum(dim=1).double().mean().item(),
    }


def of_temperatures(
    kept: Kept, record: DomainCalibration, left_out: LeftOut, unseen: Answers
) -> Iterator[tuple[str, dict[str, float]]]:
    """Calibration errors and forecasts."""
    clean = list(left_out.clean.values())
    drifted = [Answers.joined(list(own.values())) for own in left_out.drifted.values()]
    own = kept.tensor("validation|logs").double()
    validation = Answers.of(own, kept.tensor("validation|labels"), torch.ones(len(own)).double())
    of_validation, of_folds = (
        fitted_map(some, by_distance=False)[0] for some in ([validation], clean + drifted)
    )
    maps = {
        "as is": (record.log_temperature, record.by_distance),
        "raw": (0.0, 0.0),
        "one temperature": (of_folds, 0.0),
        "half of its logarithm": (of_folds / 2, 0.0),
        "left-out images alone": fitted_map(clean, by_distance=False),
        "drifts alone": fitted_map(drifted or clean, by_distance=False),
        "the best, by the labels": fitted_map([unseen], by_distance=False),
    }
    for share in (0.0, 0.25, 0.5, 0.75):
        mixed = share * of_folds + (1 - share) * of_validation
        maps[f"validation and folds, {1 - share:g} and {share:g}"] = (mixed, 0.0)
    for name, fitted in maps.items():
        probabilities = tempered(unseen.log_probabilities, unseen.distances, *fitted)
        right = (probabilities.argmax(dim=1) == unseen.labels).double().mean()
        off = (probabilities.max(dim=1).values.mean() - right).abs().item()
        yield (
            name,
            {"ece": MEASURES["ece"].compute(scored(probabilities, unseen.labels)).item(), "forecast": off},
        )


def summed(rows: list[dict[str, float]]) -> dict[str, Any]:
    """Means over runs, and how many keep what was asked."""
    found: dict[str, Any] = {name: round(statistics.fmean(row[name] for row in rows), 5) for name in rows[0]}
    if "wrong" in found:
        found["kept"] = sum(row["wrong"] <= 0.07 for row in rows)
    if "covered" in found:
        off = [row["covered"] - SHARE for row in rows]
        found["within"] = sum(abs(one) <= ENOUGH + 1e-9 for one in off)
        found["too_low"] = sum(one < -ENOUGH - 1e-9 for one in off)
        found["off"] = round(statistics.fmean(map(abs, off)), 5)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("answers", type=Path, nargs="+")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, list[dict[str, float]]]] = {"errors": {}, "sets": {}, "temperatures": {}}
    runs = 0
    for kept in opened(arguments.answers):
        left_out, unseen = kept.left_out(), kept.answers("unseen")
        record = record_of(left_out)
        ideas = {
            "errors": of_errors(record, unseen),
            "sets": of_sets(record, left_out, unseen),
            "temperatures": of_temperatures(kept, record, left_out, unseen),
        }
        for kind, some in ideas.items():
            for name, row in some:
                found[kind].setdefault(name, []).append(row)
        runs += 1
    command = "python experiments/uncertainty_ideas.py results/uncertainty-ideas.json answers/pairs"
    kinds = {
        kind: [{"idea": name} | summed(rows) for name, rows in ideas.items()] for kind, ideas in found.items()
    }
    atomic.write_json(arguments.out, {"command": command, "runs": runs} | kinds)


if __name__ == "__main__":
    main()
