"""A record of a table, made from runs that were trained elsewhere or in several calls.

    python experiments/gathered_runs.py list OUT.json RUNS...  # what a table keeps of the runs in these folders
    python experiments/gathered_runs.py table TABLE OUT.json LISTS... --command ... --revision ... --device ...

`metavib reproduce` writes the same table where it trained all of it. A row that lacks some cells is refused.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from metavib.paper import table_named
from metavib.reproduction import MeasuredRow, Reproduction, as_json, rows_to_measure, run_record

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
)


def listed(folder: Path) -> list[dict[str, Any]]:
    """What a table keeps of every finished run under this folder."""
    runs = []
    for path in sorted(folder.rglob("results.json")):
        results = json.loads(path.read_text())
        runs.append({name: results[name] for name in (*KEPT, "protocol")} | run_record(results))
    return runs


def table_of(name: str, runs: list[dict[str, Any]]) -> Reproduction:
    """The table that the runs make; rows in the order in which `metavib reproduce` has them."""
    table = table_named(name)
    averaged = {run["algorithm"] for run in runs if run["average"] != "none"}
    plain = {run["algorithm"] for run in runs if run["average"] == "none"}
    names = [row.algorithm for row in rows_to_measure(table, None) if row.algorithm and not row.settings]
    names += [own for own in sorted(plain) if own not in names]
    ordered = [own for own in names if own in plain] + [f"{own}+swad" for own in sorted(averaged)]
    rows = []
    seeds = sorted({run["seed"] for run in runs})
    for row in rows_to_measure(table, ordered):
        average = row.settings.get("average", "none")
        own = {
            (run["unseen_domain"], run["seed"]): {
                key: run[key] for key in ("experiment", "split", "unseen", "source_validation")
            }
            for run in runs
            if (run["algorithm"], run["average"]) == (row.algorithm, average)
        }
        missing = [(target, seed) for target in table.targets for seed in seeds if (target, seed) not in own]
        if missing:
            raise SystemExit(f"{row.title} lacks {missing}")
        rows.append(MeasuredRow(row, own, ()))
    shared = {
        name: {run[name] for run in runs} for name in ("steps", "preset", "selection", "backbone", "protocol")
    }
    (steps,), (preset,), (selection,), (backbone,), (protocol,) = shared.values()  # one of each, or an error
    caption = (
        f"{table.name} (the paper's {table.label}): class-averaged accuracy on the unseen domain in %, mean and "
        f"deviation over {len(seeds)} seeds; {backbone} from {runs[0]['weights']}, preset {preset}, "
        f"{steps} steps, selected by {selection}, {protocol}. p: paired t-test over targets and seeds."
    )
    return Reproduction(table, table.targets, tuple(rows), caption)


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
    for name in ("command", "revision", "device", "note"):
        of_lists.add_argument(f"--{name}", default="")
    arguments = parser.parse_args()
    if arguments.way == "list":
        record: Any = [run for folder in arguments.runs for run in listed(folder)]
        print(f"{len(record)} runs")
    else:
        runs = [run for path in arguments.lists for run in json.loads(path.read_text())]
        record = {name: getattr(arguments, name) for name in ("command", "revision", "device", "note")}
        record["table"] = as_json(table_of(arguments.table, runs))
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
