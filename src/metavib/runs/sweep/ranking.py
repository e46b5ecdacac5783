"""The ranking of a sweep: algorithms in order, with their chosen settings, means and standard errors."""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from metavib.core import atomic
from metavib.core.settings import Scalar
from metavib.core.terminal import markdown_table, table
from metavib.models.measures import MEASURES
from metavib.runs.cross_validation import accuracy_of
from metavib.runs.grid import CellResult
from metavib.runs.sweep.plan import Plan
from metavib.runs.sweep.tuning import Measured


@dataclass(frozen=True)
class TriedSetting:
    """A setting and its score; without a score, what went wrong."""

    settings: Mapping[str, Scalar]
    score: float | None
    failure: str | None


@dataclass(frozen=True)
class ChosenSetting:
    """The setting that was chosen among the tried ones; None where none could be trained."""

    seeds: tuple[int, ...]
    settings: Mapping[str, Scalar] | None
    score: float | None  # None also where there was nothing to choose
    trials: tuple[TriedSetting, ...]

    def in_words(self, rule: str) -> str:
        """The setting, its score, and among how many it was the best."""
        if self.settings is None:
            return "no setting could be trained"
        settings = " ".join(f"{name}={value}" for name, value in self.settings.items()) or "as it is"
        if self.score is None:
            return f"{settings} (nothing to choose)"
        failed = sum(trial.score is None for trial in self.trials)
        lost = f", {failed} of them broke down" if failed else ""
        return f"{settings} ({100 * self.score:.2f} % by {rule}, best of {len(self.trials)}{lost})"


@dataclass(frozen=True)
class MeasuredSeed:
    """One measured run of a chosen setting."""

    seed: int
    run: str  # its directory, below that of the sweep
    unseen: Mapping[str, float]  # measures on the unseen domain


@dataclass(frozen=True)
class OnTarget:
    """One algorithm on one unseen domain: accuracy in %, over the seeds."""

    mean: float | None
    standard_error: float | None
    chosen: tuple[ChosenSetting, ...]  # one, or one for each seed
    runs: tuple[MeasuredSeed, ...]
    failures: tuple[str, ...]


@dataclass(frozen=True)
class RankedAlgorithm:
    """A line of the ranking: mean accuracy over the unseen domains in %, over the seeds that have all of them."""

    algorithm: str
    mean: float | None
    standard_error: float | None
    targets: Mapping[str, OnTarget]


@dataclass(frozen=True)
class SelectionRule:
    """The rule that settings were chosen by."""

    rule: str
    domainbed: str  # DomainBed's name for it
    peeks: bool  # at the unseen domain


@dataclass(frozen=True)
class Ranking:
    """`ranking.json`, the algorithm with the highest mean first."""

    dataset: str
    protocol: str | None  # None where no run has results
    targets: tuple[str, ...]
    seeds: tuple[int, ...]
    search: str
    choose_for: str
    select: SelectionRule
    ranking: tuple[RankedAlgorithm, ...]

    def to_json(self) -> dict[str, object]:
        """Plain values: the same sweep gives the same bytes, whatever was killed meanwhile."""
        return dataclasses.asdict(self)

    def write(self, out: Path) -> None:
        """Write `ranking.json` and `ranking.md` into this folder."""
        atomic.write_json(out / "ranking.json", self.to_json())
        atomic.write_text(out / "ranking.md", as_markdown(self))


def ranking_of(plan: Plan, measured: Sequence[Measured], out: Path) -> Ranking:
    """The ranking of the algorithms of a sweep, whose folder is `out`."""
    rows = [
        _row(plan, name, [one for one in measured if one.contest.algorithm == name], out)
        for name in plan.algorithms
    ]
    rows.sort(key=lambda row: -math.inf if row.mean is None else row.mean, reverse=True)
    first = next((run.results for one in measured for run in one.runs if run.results), None)
    return Ranking(
        plan.values["dataset"],
        first.protocol if first else None,
        tuple(plan.targets),
        tuple(plan.seeds),
        plan.search,
        plan.choose_for,
        SelectionRule(plan.rule.name, plan.rule.title, plan.rule.peeks),
        tuple(rows),
    )


def _row(plan: Plan, algorithm: str, measured: Sequence[Measured], out: Path) -> RankedAlgorithm:
    by_target: dict[str, OnTarget] = {}
    values: dict[tuple[str, int], float] = {}
    for target in plan.targets:
        own = [one for one in measured if one.contest.target == target]
        runs = [run for one in own for run in one.runs if run.results is not None]
        for run in runs:
            assert run.results is not None
            values[target, run.cell.experiment.seed] = 100 * accuracy_of(run.results.unseen)
        by_target[target] = OnTarget(
            *mean_and_error([values[key] for key in values if key[0] == target]),
            chosen=tuple(_chosen(one) for one in own),
            runs=tuple(_run(run, out) for run in runs),
            failures=tuple(why for one in own for why in one.failures),
        )
    whole = [seed for seed in plan.seeds if all((target, seed) in values for target in plan.targets)]
    means = [statistics.fmean(values[target, seed] for target in plan.targets) for seed in whole]
    return RankedAlgorithm(algorithm, *mean_and_error(means), by_target)


def _chosen(one: Measured) -> ChosenSetting:
    contest, chosen = one.contest, one.contest.chosen
    return ChosenSetting(
        tuple(contest.seeds),
        None if chosen is None else chosen.setting,
        None if chosen is None else chosen.score,
        tuple(TriedSetting(trial.setting, trial.score, trial.failure) for trial in contest.distinct),
    )


def _run(run: CellResult, out: Path) -> MeasuredSeed:
    assert run.results is not None
    assert run.results.unseen is not None
    unseen = {name: mean for name in MEASURES if (mean := run.results.unseen.mean(name)) is not None}
    return MeasuredSeed(run.cell.experiment.seed, run.cell.out.relative_to(out).as_posix(), unseen)


def mean_and_error(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The mean and its standard error; None where there are too few values."""
    if not values:
        return None, None
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return statistics.fmean(values), error


def as_table(record: Ranking) -> str:
    """The ranking for a terminal, with the settings below it."""
    header, rows = body(record)
    return "\n".join([table(header, rows), "", *chosen_in_words(record)])


def as_markdown(record: Ranking) -> str:
    """The ranking for a page."""
    header, rows = body(record)
    chosen = [f"- {line}" for line in chosen_in_words(record)]
    return "\n".join([caption(record), "", markdown_table(header, rows), "", *chosen]) + "\n"


def caption(record: Ranking) -> str:
    """The caption: measure, seeds, selection rule, search and protocol."""
    seeds = len(record.seeds)
    rule = record.select
    peeking = ", which PEEKS at the unseen domain: no fair comparison" if rule.peeks else ""
    return (
        f"{record.dataset}: accuracy on the unseen domain in %, mean and standard error over {seeds} "
        f"seed{'s' if seeds > 1 else ''}; settings by {rule.rule} (DomainBed's {rule.domainbed}{peeking}); "
        f"{record.search} search; protocol: {record.protocol}."
    )


def body(record: Ranking) -> tuple[list[str], list[list[str]]]:
    """The head and the rows."""
    rows = []
    for place, row in enumerate(record.ranking, start=1):
        cells = [_cell(row.targets[target]) for target in record.targets]
        rows.append([f"{place}. {row.algorithm}", *cells, _cell(row)])
    return ["", *record.targets, "mean"], rows


def _cell(numbers: OnTarget | RankedAlgorithm) -> str:
    if numbers.mean is None:
        return "-"
    error = numbers.standard_error
    return f"{numbers.mean:.2f}" + ("" if error is None else f" +- {error:.2f}")


def chosen_in_words(record: Ranking) -> list[str]:
    """A line for each choice."""
    lines = []
    for row in record.ranking:
        for target, own in row.targets.items():
            for choice in own.chosen:
                who = f"{row.algorithm}, {target!r} unseen"
                if record.choose_for == "seed":
                    who += f", seed {choice.seeds[0]}"
                lines.append(f"{who}: {choice.in_words(record.select.rule)}")
    return lines
