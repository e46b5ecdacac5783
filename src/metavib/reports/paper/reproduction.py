"""A table of the paper, measured: its cells as runs, and the table that their results make."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metavib.algorithms import ALGORITHMS, title_of
from metavib.core.errors import require_installed, require_known
from metavib.core.json_record import require_format
from metavib.models.results import Measurement, Results
from metavib.reports.paper.tables import PAPER_MEASURE, PaperRow, PaperTable, table_named
from metavib.runs.cells import Cell
from metavib.runs.grid import CellResult
from metavib.training.averaging import AVERAGES
from metavib.training.experiment import experiment_from, shared_out

FORMAT = 1  # of `table.json`
AVERAGED = ("erm+swad", "metavib+swad")  # what one would try today before a new loss


@dataclass(frozen=True)
class Choices:
    """The part of a table to measure, and how."""

    rows: tuple[PaperRow, ...]
    targets: tuple[str, ...]
    seeds: tuple[int, ...]
    preset: str
    protocol: str | None
    backbone: str | None
    weights: str | None
    assignments: dict[str, Any]
    chosen_by: str = ""  # how settings were chosen, where they were
    image_size: int | None = None

    def assigned(self, name: str) -> Any:
        """The value given to the setting of this name; None where it was not."""
        given = {full.rpartition(".")[2]: value for full, value in self.assignments.items()}
        return given.get(name)


@dataclass(frozen=True)
class MeasuredRow:
    """Our numbers of one row, in percent."""

    row: PaperRow
    runs: dict[tuple[str, int], dict[str, Any]]  # by target and seed, as `run_record` gives them
    failures: tuple[str, ...]

    @property
    def values(self) -> dict[tuple[str, int], float]:
        """The paper's measure of each run."""
        return self.of(PAPER_MEASURE)

    def of(self, measure: str) -> dict[tuple[str, int], float]:
        """One measure on the unseen domain, by target and seed, in percent, of the runs that have it."""
        return {
            key: 100 * run["unseen"][measure] for key, run in self.runs.items() if measure in run["unseen"]
        }

    def of_target(self, target: str) -> list[float]:
        """One number a seed."""
        return [value for (own, _), value in self.values.items() if own == target]

    def by_seed(self, targets: Sequence[str]) -> list[float]:
        """The mean over the targets, for each seed that has them all."""
        seeds = sorted({seed for _, seed in self.values})
        whole = [seed for seed in seeds if all((target, seed) in self.values for target in targets)]
        return [statistics.mean(self.values[target, seed] for target in targets) for seed in whole]


@dataclass(frozen=True)
class Reproduction:
    """A measured table beside the paper's."""

    table: PaperTable
    targets: tuple[str, ...]
    rows: tuple[MeasuredRow, ...]
    caption: str

    def reference(self) -> MeasuredRow | None:
        """The row that the others are compared with: MetaVIB, or the best where it has several."""
        measured = [row for row in self.rows if row.values]
        named = [row for row in measured if row.row.title == "MetaVIB"]
        if named or not measured:
            return named[0] if named else None
        return max(measured, key=lambda row: statistics.mean(row.values.values()))


def rows_to_measure(table: PaperTable, algorithms: Sequence[str] | None) -> tuple[PaperRow, ...]:
    """The rows of a table that we have algorithms for, with ERM and averaged weights beside; or those named.

    A name is an algorithm's, or an algorithm's with averaged weights: "erm+swad".
    """
    ours = tuple(row for row in table.rows if row.algorithm in ALGORITHMS)
    if algorithms is None:
        if any(row.settings for row in ours):  # a table about one method's setting needs no other
            return ours
        plain = () if any(row.algorithm == "erm" for row in ours) else (_own_row("erm"),)
        return plain + ours + tuple(_own_row(name) for name in AVERAGED)
    rows: list[PaperRow] = []
    for name in algorithms:
        printed = [row for row in ours if row.algorithm == name]
        # What the paper's table lacks is measured all the same.
        rows += printed or [_own_row(name)]
    return tuple(rows)


def _own_row(name: str) -> PaperRow:
    """A row that the paper does not have."""
    algorithm, plus, average = name.partition("+")
    require_known("algorithm", algorithm, ALGORITHMS)
    title = title_of(algorithm)
    if not plus:
        return PaperRow(title, algorithm=algorithm)
    require_known("average", average, AVERAGES)
    return PaperRow(f"{title} + {average.upper()}", algorithm=algorithm, settings={"average": average})


def cells_of(table: PaperTable, choices: Choices, out: Path) -> dict[tuple[str, str, int], Cell]:
    """The runs of a table by row, target and seed. A run's folder is the hash of what decides it."""
    for target in choices.targets:
        require_known("target", target, table.targets)
    cells = {}
    algorithms = {row.algorithm for row in choices.rows if row.algorithm is not None}
    for row in choices.rows:
        assert row.algorithm is not None
        assignments = shared_out(choices.assignments, row.algorithm, algorithms)
        for name, value in row.settings.items():  # last of all: they make the row
            assignments.pop(name, None)
            assignments[name] = value
        for target in choices.targets:
            for seed in choices.seeds:
                values = {
                    "dataset": table.dataset,
                    "target": target,
                    "algorithm": row.algorithm,
                    "preset": choices.preset,
                    "protocol": choices.protocol,
                    "backbone": choices.backbone,
                    "weights": choices.weights,
                    "image_size": choices.image_size,
                    "seed": seed,
                }
                given = {name: value for name, value in values.items() if value is not None}
                experiment = experiment_from(given, assignments)
                cells[row.title, target, seed] = Cell(experiment, out / experiment.identity())
    return cells


def measured(
    table: PaperTable, choices: Choices, cells: dict[tuple[str, str, int], Cell], done: Sequence[CellResult]
) -> Reproduction:
    """The table that the results make."""
    by_place = {one.cell.out: one for one in done}
    rows = []
    caption = ""
    for row in choices.rows:
        runs, failures = {}, []
        for (title, target, seed), cell in cells.items():
            one = by_place.get(cell.out)
            if title != row.title or one is None:
                continue
            if one.results is None:
                failures.append(f"{target}, seed {seed}: {one.failure}")
            else:
                runs[target, seed] = run_record(one.results)
                caption = caption or caption_of(table, choices, one.results)
        rows.append(MeasuredRow(row, runs, tuple(failures)))
    return Reproduction(
        table, choices.targets, tuple(rows), caption or f"{table.name}: nothing was measured."
    )


def run_record(results: Results) -> dict[str, Any]:
    """The entry of a run in a table: its identity, and the means of the measures that it has."""

    def means(of: Measurement | None) -> dict[str, float] | None:
        return None if of is None else {name: round(one.mean, 6) for name, one in of.measures.items()}

    return {
        "experiment": results.experiment,
        "split": results.split,
        "unseen": means(results.unseen),
        "source_validation": means(results.source_validation),
    }


def significance(one: MeasuredRow, other: MeasuredRow) -> float | None:
    """p of a paired t-test over targets x seeds (two-sided); None where there are fewer than three pairs."""
    pairs = [key for key in one.values if key in other.values]
    mine, theirs = ([own.values[key] for key in pairs] for own in (one, other))
    if len(pairs) < 3 or len({a - b for a, b in zip(mine, theirs, strict=True)}) == 1:
        return None
    require_installed("scipy", "the significance needs scipy", package="scipy")
    from scipy import stats

    return float(stats.ttest_rel(mine, theirs).pvalue)


def as_json(reproduction: Reproduction) -> dict[str, Any]:
    """Everything, in plain values."""
    table, reference = reproduction.table, reproduction.reference()
    rows = []
    for own in reproduction.rows:
        p = significance(reference, own) if reference is not None and own is not reference else None
        rows.append(
            {
                "title": own.row.title,
                "algorithm": own.row.algorithm,
                "settings": dict(own.row.settings),
                "runs": [{"target": t, "seed": s, **run} for (t, s), run in own.runs.items()],
                "failures": list(own.failures),
                "mean": statistics.mean(means) if (means := own.by_seed(reproduction.targets)) else None,
                "paper": {target: own.row.value(table, target) for target in reproduction.targets},
                "paper_mean": own.row.mean,
                "p_against_reference": p,
            }
        )
    return {
        "format": FORMAT,
        "table": table.name,
        "of": table.label,
        "targets": list(reproduction.targets),
        "caption": reproduction.caption,
        "reference": None if reference is None else reference.row.title,
        "rows": rows,
    }


def from_json(record: dict[str, Any], path: Path) -> Reproduction:
    """The table that `as_json` made plain, in this version or an earlier one; the first wrote no format."""
    require_format({"format": 1} | record, path, FORMAT)
    table = table_named(record["table"])
    printed = {row.title: row for row in table.rows}
    rows = []
    for own in record["rows"]:
        row = printed.get(own["title"]) or PaperRow(
            own["title"], algorithm=own["algorithm"], settings=own["settings"]
        )
        runs = {(run["target"], run["seed"]): run for run in own["runs"]}
        rows.append(MeasuredRow(row, runs, tuple(own["failures"])))
    return Reproduction(table, tuple(record["targets"]), tuple(rows), record["caption"])


def caption_of(table: PaperTable, choices: Choices, results: Results) -> str:
    """The caption: everything that the numbers depend on. `results` are those of any of the runs."""
    seeds = f"{len(choices.seeds)} seed" + ("s" if len(choices.seeds) > 1 else "")
    average = choices.assigned("average")
    averaged = f"weights averaged by {average}, " if average in AVERAGES and average != "none" else ""
    peeking = " (which peeks at the unseen domain)" if results.selection == "oracle" else ""
    return " ".join(
        [
            f"{table.name} (the paper's {table.label}): class-averaged accuracy on the unseen domain in %,",
            f"mean and deviation over {seeds}; {results.backbone} from {results.weights},",
            f"preset {choices.preset}, {results.steps} steps, selected by {results.selection}{peeking},",
            f"{averaged}{choices.chosen_by}{results.protocol}. p: paired t-test over targets and seeds.",
        ]
    )
