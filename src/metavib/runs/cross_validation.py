"""Leave-one-domain-out: settings chosen by cross-validation over the source domains.

A candidate is trained once for each source domain, on the other ones, and measured on that one. The target plays
no part in it: none of its images is opened. The candidate with the best mean accuracy is then trained on all
sources. `metavib train`, `metavib reproduce` (`choose`) and `metavib sweep` (its rules) share what is here.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from metavib.core.errors import UserError
from metavib.models.results import Measurement, Results
from metavib.runs.cells import Cell
from metavib.runs.choices import Candidate, ChoiceRecord
from metavib.runs.grid import CellResult, run_grid
from metavib.runs.one_run import ExecutionContext
from metavib.training.experiment import Experiment, flat
from metavib.training.optimizer import SELECTIONS

LEAVE_ONE_DOMAIN_OUT = "leave-one-domain-out"
RULES = (*SELECTIONS, LEAVE_ONE_DOMAIN_OUT)  # of `--select`
MEASURE = "accuracy"
LEAST_SOURCES = 3  # so that two are left to train on


def folds_of(candidate: Cell, domains: Sequence[str]) -> list[Cell]:
    """The runs that judge a candidate, in the folder `folds` beside its own: one for each source domain."""
    return without_each(candidate.experiment, domains, candidate.out.parent / "folds")


def without_each(experiment: Experiment, domains: Sequence[str], folder: Path) -> list[Cell]:
    """The runs without one source domain each, in this folder; the target plays no part in any."""
    kept_away = (*experiment.without, *([] if experiment.target is None else [experiment.target]))
    sources = [domain for domain in domains if domain not in kept_away]
    folds = [replace(experiment, target=domain, without=tuple(sorted(kept_away))) for domain in sources]
    return [Cell(fold, folder / fold.identity()) for fold in folds]


def accuracy_of(measured: Measurement | None) -> float:
    """The mean accuracy, by which settings are chosen. Raises `UserError` where there is none."""
    mean = None if measured is None else measured.mean(MEASURE)
    if mean is None:
        raise UserError(
            f"a run has no {MEASURE} to choose by. Remove its results.json, and it is measured again."
        )
    return mean


def unseen_accuracy(results: Results) -> float:
    """The score of a fold: the accuracy on the domain that it left out."""
    return accuracy_of(results.unseen)


class Judgement(NamedTuple):
    """The score of a candidate: the mean over its runs, or why there is none."""

    score: float | None
    failure: str | None


def judged_by(runs: Sequence[CellResult], score: Callable[[Results], float] = unseen_accuracy) -> Judgement:
    """The judgement of these runs; a candidate has no score where one of them broke down."""
    failure = next((one.failure for one in runs if one.failure is not None), None)
    if failure is not None:
        return Judgement(None, failure)
    return Judgement(statistics.fmean(score(one.results) for one in runs if one.results is not None), None)


def best_of(scores: Sequence[float | None]) -> int | None:
    """The place of the highest score, the first of equals; None where there is no score."""
    known = [score for score in scores if score is not None]
    return scores.index(max(known)) if known else None


@dataclass(frozen=True)
class Question:
    """Candidates for one target: runs that differ in settings alone."""

    candidates: tuple[Cell, ...]
    domains: tuple[str, ...]  # of the dataset

    def folds(self, candidate: Cell) -> list[Cell]:
        """The runs that judge a candidate."""
        return folds_of(candidate, self.domains)

    @property
    def all_folds(self) -> list[Cell]:
        """The runs that decide; none where there is nothing to choose from."""
        if len(self.candidates) < 2:
            return []
        return [fold for candidate in self.candidates for fold in self.folds(candidate)]


class Choice(NamedTuple):
    """The candidate that did best, and how all of them did."""

    chosen: Cell
    record: ChoiceRecord


def question(candidates: Sequence[Cell], data_root: Path | None) -> Question:
    """Which of these runs? Equal ones are asked about once."""
    experiment = candidates[0].experiment
    dataset = experiment.dataset_in(data_root)
    # Errors of the run in the end, before its folds are trained.
    experiment.split_of(dataset)
    found = Question(tuple(dict.fromkeys(candidates)), tuple(dataset.domains))
    if len(found.folds(candidates[0])) < LEAST_SOURCES:
        raise UserError(
            f"{LEAVE_ONE_DOMAIN_OUT} needs at least {LEAST_SOURCES} source domains, so that 2 are left to train "
            f"on: {dataset.name} has {', '.join(dataset.domains)}."
        )
    return found


def choose(
    questions: Sequence[Question], context: ExecutionContext, *, batch: int | None
) -> list[Choice | str]:
    """Train and measure all folds; for each question the choice, or why there is none."""
    folds = dict.fromkeys(fold for one in questions for fold in one.all_folds)
    done = {finished.cell: finished for finished in run_grid(list(folds), context, batch=batch)}
    choices: list[Choice | str] = []
    for one in questions:
        if len(one.candidates) == 1:
            choices.append(_choice(one.candidates[0], []))
            continue
        names = _varied([cell.experiment for cell in one.candidates])
        judgements: list[Judgement] = []
        records = []
        for candidate in one.candidates:
            runs = [done[fold] for fold in one.folds(candidate)]
            judgements.append(judged_by(runs))
            found = {
                str(run.cell.experiment.target): unseen_accuracy(run.results) for run in runs if run.results
            }
            settings = {name: flat(candidate.experiment.to_json())[name] for name in names}
            identity = candidate.experiment.identity()
            records.append(Candidate(identity, settings, found, judgements[-1].score))
        place = best_of([own.score for own in judgements])
        if place is None:
            choices.append(f"no candidate could be trained on all folds: {judgements[0].failure}")
            continue
        choices.append(_choice(one.candidates[place], records))
    return choices


def _choice(chosen: Cell, candidates: Sequence[Candidate]) -> Choice:
    identity = chosen.experiment.identity()
    record = ChoiceRecord(LEAVE_ONE_DOMAIN_OUT, peeks=False, candidates=tuple(candidates), chosen=identity)
    return Choice(chosen, record)


def _varied(experiments: Sequence[Experiment]) -> list[str]:
    """The settings in which the candidates differ."""
    values = [flat(experiment.to_json()) for experiment in experiments]
    return [name for name in values[0] if any(own.get(name) != values[0][name] for own in values[1:])]
