"""What the demo compares, chosen with its targets hidden, then measured over ten seeds.

    python experiments/demo_seeds.py choose results/demo-choice.json    # settings, with 0 and 75 degrees hidden
    python experiments/demo_seeds.py measure results/demo-seeds.json    # the demo's own cells, seeds 0 to 9

`choose` leaves 15 and 60 degrees out in turn and learns from the other three of 15 to 60: as in the demo, an angle
beyond those seen. Both methods have the same budget and the same learning rates to choose from. `measure` trains
exactly what `metavib demo --seed S` trains. Both go on where they stopped.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metavib.core.device import resolve_device
from metavib.interfaces.cli.training import demo
from metavib.runs.one_run import ExecutionContext, run_experiment
from metavib.training.experiment import Experiment, experiment_from

HIDDEN, LEFT_OUT = ("0", "75"), ("15", "60")
CHOICE_SEEDS = (100, 101)
SEEDS = tuple(range(10))
MEASURES = ("accuracy", "ece")
BEGUN_AS_IDENTITY: dict[str, Any] = {"inference": "identity", "logit_scale": 1.0}
VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    *(("erm", {"learning_rate": rate}) for rate in (1e-3, 2e-3, 4e-3, 8e-3)),
    ("metavib", {"learning_rate": 1e-3}),
    *(("metavib", {"learning_rate": rate, **BEGUN_AS_IDENTITY}) for rate in (1e-3, 2e-3, 4e-3)),
)


def measured(experiment: Experiment) -> dict[str, float]:
    """Train one cell and measure it on the domain that it never saw."""
    context = ExecutionContext(device=resolve_device("cpu"), threads=1)
    with tempfile.TemporaryDirectory() as folder:
        results = run_experiment(experiment, Path(folder) / "run", context)
    assert results is not None
    assert results.unseen is not None
    return {name: round(float(results.unseen.mean(name) or 0.0), 4) for name in MEASURES}


def choose(out: Path) -> None:
    """Every variant on the hidden tasks."""
    record = started(out, "choose")
    for algorithm, own in VARIANTS:
        settings = demo.IN_COMMON | own
        name = ", ".join([algorithm, *(f"{name} {value}" for name, value in own.items())])
        row = record["rows"].setdefault(name, {"algorithm": algorithm, "settings": settings, "cells": {}})
        for seed in CHOICE_SEEDS:
            for angle in LEFT_OUT:
                cell = f"{angle} degrees, seed {seed}"
                if cell in row["cells"]:
                    continue
                values = {"dataset": demo.DATASET, "target": angle, "without": list(HIDDEN)}
                values |= {"algorithm": algorithm, "preset": "demo", "seed": seed}
                row["cells"][cell] = measured(experiment_from(values, settings))
                for measure in MEASURES:
                    row[measure] = round(statistics.mean(one[measure] for one in row["cells"].values()), 4)
                out.write_text(json.dumps(record, indent=1) + "\n")


def measure(out: Path) -> None:
    """The demo's cells, seed after seed; then in how many seeds MetaVIB was ahead."""
    record = started(out, "measure")
    record["settings"] = {"in common": demo.IN_COMMON, **demo.OWN}
    for seed in SEEDS:
        row = record["rows"].setdefault(str(seed), {})
        for algorithm in demo.ALGORITHMS:
            for angle in HIDDEN:
                cells = row.setdefault(algorithm, {})
                if angle not in cells:
                    experiment = demo.demo_experiment(angle, algorithm, seed, information=False)
                    cells[angle] = measured(experiment)
                    out.write_text(json.dumps(record, indent=1) + "\n")
        if all(len(row[algorithm]) == len(HIDDEN) for algorithm in demo.ALGORITHMS):
            record["summary"] = summary(record["rows"])
        out.write_text(json.dumps(record, indent=1) + "\n")


def summary(rows: Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]) -> dict[str, Any]:
    """Means over seeds of the mean over the angles, and the seeds in which MetaVIB was better."""

    def mean(row: Mapping[str, Any], algorithm: str, measure: str) -> float:
        return statistics.mean(cell[measure] for cell in row[algorithm].values())

    found: dict[str, Any] = {"seeds": len(rows)}
    for name, sign in (("accuracy", 1), ("ece", -1)):
        own = {one: [mean(row, one, name) for row in rows.values()] for one in demo.ALGORITHMS}
        pairs = zip(own["metavib"], own["erm"], strict=True)
        found[name] = {one: round(statistics.mean(values), 4) for one, values in own.items()}
        found[name]["metavib better in"] = sum(sign * (mine - other) > 0 for mine, other in pairs)
    return found


def started(out: Path, kind: str) -> dict[str, Any]:
    """The record as it stands, to be gone on with."""
    record: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    name = {"choose": "choice", "measure": "seeds"}[kind]
    command = f"python experiments/demo_seeds.py {kind} results/demo-{name}.json"
    return {"command": command, "device": "1 CPU core", "rows": {}} | record


def main() -> None:
    """One of the two."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("choose", "measure"))
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    {"choose": choose, "measure": measure}[arguments.kind](arguments.out)


if __name__ == "__main__":
    main()
