"""Leave-one-domain-out: settings chosen by cross-validation over the source domains.

A candidate is trained once for each source domain, on the other ones, and measured on that one. The target plays
no part in it: none of its images is opened. The candidate with the best mean accuracy is then trained on all
sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from metavib import atomic
from metavib.cells import Cell
from metavib.errors import UserError
from metavib.experiment import Experiment, flat
from metavib.grid import run_grid
from metavib.optimization import SELECTIONS
from metavib.runner import Surroundings

LEAVE_ONE_DOMAIN_OUT = "leave-one-domain-out"
RULES = (*SELECTIONS, LEAVE_ONE_DOMAIN_OUT)  # of `--select`
MEASURE = "accuracy"


@dataclass(frozen=True)
class Question:
    """Candidates for one target: runs that differ in settings alone."""

    candidates: tuple[Cell, ...]
    domains: tuple[str, ...]  # of the dataset

    def folds(self, candidate: Cell) -> list[Cell]:
        """The runs that judge a candidate, in the folder `folds` beside its own."""
        experiment = candidate.experiment
        kept_away = (*experiment.without, *([] if experiment.target is None else [experiment.target]))
        sources = [domain for domain in self.domains if domain not in kept_away]
        folds = [replace(experiment, target=domain, without=tuple(sorted(kept_away))) for domain in sources]
        return [Cell(fold, candidate.out.parent / "folds" / fold.identity()) for fold in folds]

    @property
    def all_folds(self) -> list[Cell]:
        """The runs that decide; none where there is nothing to choose from."""
        if len(self.candidates) < 2:
            return []
        return [fold for candidate in self.candidates for fold in self.folds(candidate)]


@dataclass(frozen=True)
class Choice:
    """The candidate that did best, and how all of them did."""

    chosen: Cell
    record: dict[str, Any]

    def write(self) -> None:
        """Beside the results of the run that was chosen."""
        atomic.write_json(self.chosen.out / "choice.json", self.record)


def question(candidates: Sequence[Cell], data_root: Path | None) -> Question:
    """Which of these runs? Equal ones are asked about once."""
    experiment = candidates[0].experiment
    dataset = experiment.dataset_in(data_root)
    # Errors of the run in the end, before its folds are trained.
    experiment.split_of(dataset)
    found = Question(tuple(dict.fromkeys(candidates)), tuple(dataset.domains))
    if len(found.folds(candidates[0])) < 3:
        raise UserError(
            f"{LEAVE_ONE_DOMAIN_OUT} needs at least 3 source domains, so that 2 are left to train on: "
            f"{dataset.name} has {', '.join(dataset.domains)}."
        )
    return found


def choose(
    questions: Sequence[Question], surroundings: Surroundings, *, batch: int | None
) -> list[Choice | str]:
    """Train and measure all folds; for each question the choice, or why there is none."""
    folds = dict.fromkeys(fold for one in questions for fold in one.all_folds)
    done = {finished.cell: finished for finished in run_grid(list(folds), surroundings, batch=batch)}
    choices: list[Choice | str] = []
    for one in questions:
        if len(one.candidates) == 1:
            choices.append(Choice(one.candidates[0], {"rule": LEAVE_ONE_DOMAIN_OUT, "candidates": []}))
            continue
        names = _varied([cell.experiment for cell in one.candidates])
        scores: list[float | None] = []
        records = []
        for candidate in one.candidates:
            results = {fold.experiment.target: done[fold].results for fold in one.folds(candidate)}
            accuracies = {domain: r["unseen"][MEASURE]["mean"] for domain, r in results.items() if r}
            whole = len(accuracies) == len(results)
            scores.append(sum(accuracies.values()) / len(accuracies) if whole else None)
            settings = {name: flat(candidate.experiment.to_json())[name] for name in names}
            identity = candidate.experiment.identity()
            records.append(
                {"experiment": identity, "settings": settings, MEASURE: accuracies, "mean": scores[-1]}
            )
        known = [score for score in scores if score is not None]
        if not known:
            failures = [done[fold].failure for fold in one.all_folds if done[fold].failure]
            choices.append(f"no candidate could be trained on all folds: {failures[0]}")
            continue
        best = one.candidates[scores.index(max(known))]  # the first of equals
        record = {"rule": LEAVE_ONE_DOMAIN_OUT, "candidates": records, "chosen": best.experiment.identity()}
        choices.append(Choice(best, record))
    return choices


def _varied(experiments: Sequence[Experiment]) -> list[str]:
    """The settings in which the candidates differ."""
    values = [flat(experiment.to_json()) for experiment in experiments]
    return [name for name in values[0] if any(own.get(name) != values[0][name] for own in values[1:])]
