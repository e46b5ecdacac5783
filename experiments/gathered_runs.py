"""A record of a table, made from runs that were trained elsewhere or in several calls.

    python experiments/gathered_runs.py list OUT.json RUNS...  # what a table keeps of the runs in these folders
    python experiments/gathered_runs.py table TABLE OUT.json LISTS... --command ... --revision ... --device ...
    python experiments/gathered_runs.py table TABLE OUT.json LISTS... --add RECORD.json ...  # to what it has

`metavib reproduce` writes the same table where it trained all of it. A row may have fewer seeds than others, and
the caption says so. A row that lacks some targets of a seed is in no table: its runs wait under "unfinished" until
others are added.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from metavib.models.results import results_from
from metavib.reports.paper.reproduction import (
    Choices,
    MeasuredRow,
    Reproduction,
    as_json,
    caption_of,
    rows_to_measure,
    run_record,
)
from metavib.reports.paper.tables import PaperRow, PaperTable, table_named

KEPT = (
    "algorithm",
    "average",
    "unseen_domain",
    "seed",
    "steps",
    "preset",
    "selection",
    "backbone",
    "weights",
    "protocol",
)
SHARED = ("steps", "preset", "selection", "backbone", "weights", "protocol")  # by all runs of a table


def listed(folder: Path) -> list[dict[str, Any]]:
    """What a table keeps of every finished run under this folder."""
    runs = []
    for path in sorted(folder.rglob("results.json")):
        results = json.loads(path.read_text())
        method = json.loads((path.parent / "experiment.json").read_text())["experiment"]["method"]
        kept = {name: results[name] for name in KEPT}
        runs.append(kept | run_record(results_from(results, path)) | {"method": method})
    return runs


def runs_of(table: dict[str, Any], like: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs of a record's table, with what all of them share as `like` has it; `main` compares the captions."""
    runs = []
    for row in table["rows"]:
        method = {name: value for name, value in row["settings"].items() if name != "average"}
        own = {
            "algorithm": row["algorithm"],
            "average": row["settings"].get("average", "none"),
            "method": method,
        }
        for run in row["runs"]:
            runs.append(like | run | own | {"unseen_domain": run["target"]})
    return runs


def belongs(run: dict[str, Any], row: PaperRow) -> bool:
    """Whether a run is of this row: its algorithm, its averaging, and the settings that make the row."""
    settings = {"average": "none"} | dict(row.settings)
    if (run["algorithm"], run["average"]) != (row.algorithm, settings.pop("average")):
        return False
    return all(run["method"][name] == value for name, value in settings.items())


def ordered_rows(table: PaperTable, runs: list[dict[str, Any]]) -> tuple[PaperRow, ...]:
    """The rows that the runs are of, as `metavib reproduce` orders them."""
    if any(row.settings.keys() - {"average"} for row in table.rows):
        return rows_to_measure(table, None)
    averaged = {run["algorithm"] for run in runs if run["average"] != "none"}
    plain = {run["algorithm"] for run in runs if run["average"] == "none"}
    names = [row.algorithm for row in rows_to_measure(table, None) if row.algorithm and not row.settings]
    names += [own for own in sorted(plain) if own not in names]
    ordered = [own for own in names if own in plain] + [f"{own}+swad" for own in sorted(averaged)]
    return rows_to_measure(table, ordered)


def table_of(name: str, runs: list[dict[str, Any]]) -> tuple[Reproduction, list[dict[str, Any]]]:
    """The table that the runs make, rows as `metavib reproduce` orders them; and the runs of unfinished rows."""
    table = table_named(name)
    rows: list[MeasuredRow] = []
    unfinished: list[dict[str, Any]] = []
    seeds = sorted({run["seed"] for run in runs})
    for row in ordered_rows(table, runs):
        of_row = [run for run in runs if belongs(run, row)]
        kept = {
            (run["unseen_domain"], run["seed"]): {
                key: run[key] for key in ("experiment", "split", "unseen", "source_validation")
            }
            for run in of_row
        }
        of_its_own = sorted({run["seed"] for run in of_row}) or seeds
        cells = [(target, seed) for target in table.targets for seed in of_its_own]
        missing = [cell for cell in cells if cell not in kept]
        if missing:
            print(f"{row.title} lacks {missing}")
            unfinished += of_row
        else:
            rows.append(MeasuredRow(row, {cell: kept[cell] for cell in cells}, ()))
    shared = {name: {run[name] for run in runs} for name in SHARED}
    if mixed := [name for name, values in shared.items() if len(values) > 1]:
        raise SystemExit(f"runs that make no table: they differ in {', '.join(mixed)}")
    counts = {row.row.title: len(row.by_seed(table.targets)) for row in rows}
    most = max(counts.values(), default=len(seeds))
    choices = Choices(
        rows=tuple(row.row for row in rows),
        targets=table.targets,
        seeds=tuple(seeds[:most]),  # the caption counts them
        **{name: runs[0][name] for name in ("preset", "protocol", "backbone", "weights")},
        assignments={},
    )
    caption = caption_of(table, choices, SimpleNamespace(**runs[0]))
    if fewer := ", ".join(f"{title} ({count})" for title, count in counts.items() if count < most):
        caption += f" Over fewer seeds: {fewer}."
    return Reproduction(table, table.targets, tuple(rows), caption), unfinished


def main() -> None:
    """List runs, or make the table of lists."""
    parser = argparse.ArgumentParser(description=__doc__)
    ways = parser.add_subparsers(dest="way", required=True)
    of_runs = ways.add_parser("list")
    of_runs.add_argument("out", type=Path)
    of_runs.add_argument("runs", type=Path, nargs="+")
    of_lists = ways.add_parser("table")
    of_lists.add_argument("table")
    of_lists.add_argument("out", type=Path)
    of_lists.add_argument("lists", type=Path, nargs="+")
    of_lists.add_argument("--add", type=Path, metavar="RECORD", help="an earlier record, whose runs are kept")
    for name in ("command", "revision", "device", "note"):
        of_lists.add_argument(f"--{name}", default="")
    arguments = parser.parse_args()
    if arguments.way == "list":
        record: Any = [run for folder in arguments.runs for run in listed(folder)]
        print(f"{len(record)} runs")
    else:
        runs = [run for path in arguments.lists for run in json.loads(path.read_text())]
        if arguments.add:
            earlier = json.loads(arguments.add.read_text())
            # What the new runs share must be true of the rows' runs, whose record does not say it.
            if of_rows := runs_of(earlier["table"], runs[0]):
                again, _ = table_of(arguments.table, of_rows)
                if earlier["table"]["caption"] != again.caption:
                    raise SystemExit(f"other runs than those of {arguments.add}: {again.caption}")
            runs = of_rows + earlier.get("unfinished", []) + runs
        table, unfinished = table_of(arguments.table, runs)
        record = {name: getattr(arguments, name) for name in ("command", "revision", "device", "note")}
        record |= {"table": as_json(table), "unfinished": unfinished}
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
