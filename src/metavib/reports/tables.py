"""Tables of results on unseen domains: methods x targets, with the paper's numbers where it has them."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from metavib.core.foreign_text import csv_text
from metavib.models.measures import MEASURES
from metavib.models.metrics import Measure
from metavib.reports.paper.tables import PAPER_MEASURE, TABLES, PaperRow, PaperTable
from metavib.runs.records import Group, RunRecord
from metavib.training.experiment import flat

# What differs between the runs of one row, or stands in its title already. A preset decides nothing by itself.
NOT_SETTINGS = ("target", "seed", "preset", "algorithm", "training.average", "training.record_information")


@dataclass(frozen=True)
class Value:
    """One cell: a mean over seeds, in the unit of the measure."""

    mean: float
    deviation: float | None = None  # None for one seed
    seeds: int | None = None  # how many; a printed number does not say
    best: bool = False
    digits: int = 2

    @property
    def text(self) -> str:
        """Mean ± deviation, as a table prints them."""
        numbers = [self.mean] if self.deviation is None else [self.mean, self.deviation]
        return " ± ".join(f"{number:.{self.digits}f}" for number in numbers)


@dataclass(frozen=True)
class MethodRow:
    """One method, or one printed line of the paper."""

    title: str
    values: tuple[Value | None, ...]  # by column
    ours: bool = True
    peeks: bool = False  # selected on the unseen domain: no fair comparison


@dataclass(frozen=True)
class MeasureTable:
    """One measure of all runs of a group, on their unseen domains and in its unit."""

    name: str
    title: str
    unit: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[MethodRow, ...]

    def csv(self) -> str:
        """One cell a line."""
        lines = []
        for row in self.rows:
            for column, value in zip(self.columns, row.values, strict=True):
                if value is not None:
                    deviation = "" if value.deviation is None else f"{value.deviation:.4f}"
                    lines.append([row.title, column, f"{value.mean:.4f}", deviation, value.seeds or ""])
        return csv_text(["row", "unseen", "mean", "deviation", "seeds"], lines)


def tables_of(group: Group) -> list[MeasureTable]:
    """A table for each measure that the runs have."""
    return [table for name in MEASURES if (table := measure_table(group, name)) is not None]


def measure_table(group: Group, name: str) -> MeasureTable | None:
    """The table of the measure of this name; None where no run has it."""
    measure = MEASURES[name]
    targets = _columns(group)
    columns = (*targets, "mean") if len(targets) > 1 else targets
    rows = []
    for title, runs in runs_by_row(group.held_out).items():
        measured = _measured(runs, name)
        if measured:
            peeks = runs[0].experiment.training.selection == "oracle"
            values = _values(measured, targets, len(columns), digits=2 if measure.unit else 4)
            rows.append(MethodRow(title, values, peeks=peeks))
    if not rows:
        return None
    rows = _with_best(rows, measure)
    printed = _printed(group, columns) if name == PAPER_MEASURE else []
    return MeasureTable(
        name=f"table-{name.replace('_', '-')}",
        title=measure.title[0].upper() + measure.title[1:],
        unit=measure.unit,
        caption=_caption(measure, rows, printed),
        columns=columns,
        rows=(*rows, *printed),
    )


def runs_by_row(runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Runs that differ in target and seed only, under a title that names what sets them apart from others.

    The settings that runs of one method do not share are part of it: "MetaVIB, beta 0.01".
    """
    titled: dict[str, list[RunRecord]] = {}
    for run in runs:
        titled.setdefault(run.title, []).append(run)
    rows: dict[str, list[RunRecord]] = {}
    for title, own in titled.items():
        everything = [flat(run.experiment.to_json()) for run in own]
        settings = [{n: value for n, value in one.items() if n not in NOT_SETTINGS} for one in everything]
        names = list(dict.fromkeys(name for one in settings for name in one))
        varied = [name for name in names if len({repr(one.get(name)) for one in settings}) > 1]
        order = sorted(range(len(own)), key=lambda number: [_rank(settings[number].get(n)) for n in varied])
        for number in order:
            words = [f"{name.rpartition('.')[2]} {_word(settings[number].get(name))}" for name in varied]
            peeks = " (peeks)" if own[number].experiment.training.selection == "oracle" else ""
            rows.setdefault(", ".join([title, *words]) + peeks, []).append(own[number])
    return rows


def _rank(value: Any) -> tuple[bool, float, str]:
    number = isinstance(value, int | float)
    return not number, float(value) if number else 0.0, str(value)


def _word(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple | list):
        return "+".join(map(str, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _columns(group: Group) -> tuple[str, ...]:
    paper = _paper(group)
    return group.targets if paper is None else tuple(own for own in paper.targets if own in group.targets)


def _measured(runs: Sequence[RunRecord], name: str) -> dict[tuple[str, int], float]:
    """A measure in its unit, by target and seed: a copy of a run does not count twice."""
    found, measure = {}, MEASURES[name]
    for run in runs:
        mean = None if run.results.unseen is None else run.results.unseen.mean(name)
        if mean is not None and measure.allows(mean):
            found[run.target, run.experiment.seed] = measure.scale * mean
    return found


def _values(
    measured: Mapping[tuple[str, int], float], targets: Sequence[str], columns: int, digits: int
) -> tuple[Value | None, ...]:
    """A value for each target; of several also their mean, over the seeds that have them all."""
    by_target = [[value for (own, _), value in measured.items() if own == target] for target in targets]
    if columns > len(targets):
        seeds = sorted({seed for _, seed in measured})
        whole = [seed for seed in seeds if all((target, seed) in measured for target in targets)]
        by_target.append([sum(measured[t, seed] for t in targets) / len(targets) for seed in whole])
    return tuple(_value(own, digits) if own else None for own in by_target)


def _value(values: Sequence[float], digits: int) -> Value:
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Value(statistics.fmean(values), deviation, len(values), digits=digits)


def _with_best(rows: Sequence[MethodRow], measure: Measure) -> list[MethodRow]:
    """Mark the best of each column among those that can be compared, as printed: equals are all the best."""
    marked = [list(row.values) for row in rows]
    for column in range(len(rows[0].values)):
        candidates = {
            number: round(value.mean, value.digits)
            for number, row in enumerate(rows)
            if not row.peeks and (value := row.values[column]) is not None
        }
        if len(candidates) < 2:
            continue
        best = max(candidates.values()) if measure.higher_is_better else min(candidates.values())
        for number, mean in candidates.items():
            value = marked[number][column]
            if mean == best and value is not None:
                marked[number][column] = replace(value, best=True)
    return [replace(row, values=tuple(values)) for row, values in zip(rows, marked, strict=True)]


def _paper(group: Group) -> PaperTable | None:
    """The paper's table of this dataset, where the runs follow its protocol."""
    paper = TABLES.get(group.dataset)
    if paper is None or not set(group.targets) <= set(paper.targets):
        return None
    rotated_otherwise = group.dataset == "rotated-mnist" and not group.protocol.startswith("paper")
    return None if rotated_otherwise else paper


def _printed(group: Group, columns: Sequence[str]) -> list[MethodRow]:
    """MetaVIB's row of the paper, and that of the best of its rivals."""
    paper = _paper(group)
    if paper is None:
        return []
    with_mean = [row for row in paper.rows if row.mean is not None]
    own = [row for row in with_mean if row.algorithm == "metavib"]
    rivals = [row for row in with_mean if row.algorithm != "metavib"]
    whole = set(paper.targets) <= set(columns)

    def value(row: PaperRow, column: str) -> Value | None:
        if column == "mean":
            return Value(row.mean) if whole and row.mean is not None else None
        mean = row.value(paper, column)
        return None if mean is None else Value(mean, row.deviation(paper, column))

    return [
        MethodRow(f"{row.title}, paper", tuple(value(row, column) for column in columns), ours=False)
        for row in [*own, *sorted(rivals, key=lambda rival: -(rival.mean or 0.0))[:1]]
    ]


def _caption(measure: Measure, rows: Sequence[MethodRow], printed: Sequence[MethodRow]) -> str:
    counts = sorted({value.seeds for row in rows for value in row.values if value and value.seeds})
    if counts == [1]:
        over = "One seed: differences may be chance."
    elif len(counts) == 1:
        over = f"Mean ± deviation over {counts[0]} seeds."
    else:
        over = f"Mean ± deviation over {counts[0]} to {counts[-1]} seeds (the CSV says how many)."
    words = [f"{measure.caption}. {over}"]
    if len(rows) > 1:
        words.append("The best of each column is bold.")
    if any(row.peeks for row in rows):
        words.append(
            "A row that peeks was selected on the unseen domain itself: it is not a fair comparison."
        )
    if printed:
        words.append(
            "Paper: as printed by Du et al. (ECCV 2020), MetaVIB and the best other method there; "
            "network and budget may differ from these runs."
        )
    return " ".join(words)
