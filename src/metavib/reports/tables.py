"""What runs measured on their unseen domains: methods x targets, with the paper's numbers where it has them."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from metavib.experiment import flat
from metavib.foreign_text import csv_cells
from metavib.paper import TABLES
from metavib.paper import Row as PaperRow
from metavib.paper import Table as PaperTable
from metavib.reports.records import Group, RunRecord

# What differs between the runs of one row, or stands in its title already. A preset decides nothing by itself.
NOT_SETTINGS = ("target", "seed", "preset", "algorithm", "training.average", "training.record_information")


@dataclass(frozen=True)
class Measure:
    """One number of `results.json`, shown in percent."""

    name: str
    title: str
    meaning: str
    higher_is_better: bool


MEASURES = (
    Measure(
        "class_averaged_accuracy",
        "Class-averaged accuracy",
        "the mean of the accuracies of all classes, the paper's measure; higher is better",
        True,
    ),
    Measure(
        "accuracy", "Accuracy", "the share of images that are classified rightly; higher is better", True
    ),
    Measure(
        "ece",
        "Calibration error (ECE)",
        "how far confidence is from the share of right answers; lower is better",
        False,
    ),
)


@dataclass(frozen=True)
class Value:
    """One cell: a mean over seeds, in percent."""

    mean: float
    deviation: float | None = None  # of one seed there is none
    seeds: int | None = None  # how many; a printed number does not say
    best: bool = False

    @property
    def text(self) -> str:
        """As a table prints it."""
        return f"{self.mean:.2f}" + ("" if self.deviation is None else f" ± {self.deviation:.2f}")


@dataclass(frozen=True)
class Row:
    """One method, or one printed line of the paper."""

    title: str
    values: tuple[Value | None, ...]  # by column
    ours: bool = True
    peeks: bool = False  # selected on the unseen domain: no fair comparison


@dataclass(frozen=True)
class Table:
    """One measure of all runs of a group, on their unseen domains and in percent."""

    name: str
    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def csv(self) -> str:
        """One cell a line."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["row", "unseen", "mean", "deviation", "seeds"])
        for row in self.rows:
            for column, value in zip(self.columns, row.values, strict=True):
                if value is not None:
                    deviation = "" if value.deviation is None else f"{value.deviation:.4f}"
                    cells = [row.title, column, f"{value.mean:.4f}", deviation, value.seeds or ""]
                    writer.writerow(csv_cells(cells))
        return text.getvalue()


def tables_of(group: Group) -> list[Table]:
    """A table for each measure that the runs have."""
    return [table for measure in MEASURES if (table := table_of(group, measure)) is not None]


def table_of(group: Group, measure: Measure) -> Table | None:
    """The table of one measure; None where no run has it."""
    targets = _columns(group)
    columns = (*targets, "mean") if len(targets) > 1 else targets
    rows = []
    for title, runs in rows_of(group.held_out).items():
        measured = _measured(runs, measure)
        if measured:
            peeks = runs[0].experiment.training.selection == "oracle"
            rows.append(Row(title, _values(measured, targets, len(columns)), peeks=peeks))
    if not rows:
        return None
    rows = _with_best(rows, measure)
    printed = _printed(group, columns) if measure.name == "class_averaged_accuracy" else []
    return Table(
        name=f"table-{measure.name.replace('_', '-')}",
        title=measure.title,
        caption=_caption(measure, rows, printed),
        columns=columns,
        rows=(*rows, *printed),
    )


def rows_of(runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Runs that differ in target and seed only, under a title that names what sets them apart from others.

    The settings that runs of one method do not share are part of it: "MetaVIB, beta 0.01".
    """
    titled: dict[str, list[RunRecord]] = {}
    for run in runs:
        titled.setdefault(run.title, []).append(run)
    rows: dict[str, list[RunRecord]] = {}
    for title, own in titled.items():
        settings = [_settings(run) for run in own]
        names = list(dict.fromkeys(name for one in settings for name in one))
        varied = [name for name in names if len({repr(one.get(name)) for one in settings}) > 1]
        order = sorted(range(len(own)), key=lambda number: [_rank(settings[number].get(n)) for n in varied])
        for number in order:
            words = [f"{name.rpartition('.')[2]} {_word(settings[number].get(name))}" for name in varied]
            peeks = " (peeks)" if own[number].experiment.training.selection == "oracle" else ""
            rows.setdefault(", ".join([title, *words]) + peeks, []).append(own[number])
    return rows


def _settings(run: RunRecord) -> dict[str, Any]:
    everything = flat(run.experiment.to_json())
    return {name: value for name, value in everything.items() if name not in NOT_SETTINGS}


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


def _measured(runs: Sequence[RunRecord], measure: Measure) -> dict[tuple[str, int], float]:
    """In percent, by target and seed: a copy of a run does not count twice."""
    found = {}
    for run in runs:
        entry = run.results["unseen"].get(measure.name)
        mean = entry.get("mean") if isinstance(entry, dict) else None
        if isinstance(mean, int | float) and 0 <= mean <= 1:  # a share of the images, as all measures here
            found[run.target, run.experiment.seed] = 100 * float(mean)
    return found


def _values(
    measured: Mapping[tuple[str, int], float], targets: Sequence[str], columns: int
) -> tuple[Value | None, ...]:
    """A value for each target; where there are several, the mean over them, of the seeds that have them
    all."""
    by_target = [[value for (own, _), value in measured.items() if own == target] for target in targets]
    if columns > len(targets):
        seeds = sorted({seed for _, seed in measured})
        whole = [seed for seed in seeds if all((target, seed) in measured for target in targets)]
        by_target.append([sum(measured[t, seed] for t in targets) / len(targets) for seed in whole])
    return tuple(_value(own) if own else None for own in by_target)


def _value(values: Sequence[float]) -> Value:
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Value(statistics.fmean(values), deviation, len(values))


def _with_best(rows: Sequence[Row], measure: Measure) -> list[Row]:
    """Mark the best of each column among those that can be compared, as printed: equals are all the best."""
    marked = [list(row.values) for row in rows]
    for column in range(len(rows[0].values)):
        candidates = {
            number: round(value.mean, 2)
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


def _printed(group: Group, columns: Sequence[str]) -> list[Row]:
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
        Row(f"{row.title}, paper", tuple(value(row, column) for column in columns), ours=False)
        for row in [*own, *sorted(rivals, key=lambda rival: -(rival.mean or 0.0))[:1]]
    ]


def _caption(measure: Measure, rows: Sequence[Row], printed: Sequence[Row]) -> str:
    counts = sorted({value.seeds for row in rows for value in row.values if value and value.seeds})
    if counts == [1]:
        over = "One seed: differences may be chance."
    elif len(counts) == 1:
        over = f"Mean ± deviation over {counts[0]} seeds."
    else:
        over = f"Mean ± deviation over {counts[0]} to {counts[-1]} seeds (the CSV says how many)."
    words = [f"{measure.meaning[0].upper()}{measure.meaning[1:]}. {over}"]
    if len(rows) > 1:
        words.append("The best of each column is bold.")
    if any(row.peeks for row in rows):
        words.append("A row that peeks was selected on the unseen domain itself: it is no fair comparison.")
    if printed:
        words.append(
            "Paper: as printed by Du et al. (ECCV 2020), MetaVIB and the best other method there; "
            "network and budget may differ from these runs."
        )
    return " ".join(words)
