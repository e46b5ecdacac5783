"""What DomainBed's train.py wrote about ERM and MetaVIB, and what an update of each costs.

    python experiments/domainbed_runs.py results/domainbed.json OUTPUT_DIR... [--remark TEXT] [--runs-only]

Each OUTPUT_DIR is the `--output_dir` of one run, made by the script in docs/python.md with DomainBed's defaults. A
run that has not ended is taken with what it has. The updates are timed here, by CPU seconds of one thread, in
turns, on batches of random images: DomainBed and its requirements must be importable. `--runs-only` keeps the
times that the record has.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from pathlib import Path
from typing import Any

import torch
from metavib.domainbed import MetaVIB

from metavib.runs.provenance import git_revision

TURNS = 5
NETWORKS = {  # dataset whose defaults are taken, shape of an input, classes, training domains
    "MNIST_CNN": ("RotatedMNIST", (1, 28, 28), 10, 5),
    "MLP": ("RotatedMNIST", (784,), 10, 5),
}
OF_MLP = {"mlp_width": 256, "mlp_depth": 3, "mlp_dropout": 0.0}  # DomainBed's defaults where it has them


def run_of(folder: Path) -> dict[str, Any]:
    """One run: its settings, and a line for each time that it was measured."""
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    given = lines[0]["args"]
    kept = (
        "algorithm",
        "dataset",
        "test_envs",
        "steps",
        "checkpoint_freq",
        "seed",
        "trial_seed",
        "hparams_seed",
    )
    return {
        **{name: given[name] for name in kept},
        "hparams": lines[0]["hparams"],
        "versions": _versions(folder / "out.txt"),
        "ended": (folder / "done").exists(),
        "measured": [
            {
                "step": line["step"],
                "loss": round(line["loss"], 4),
                "seconds_a_step": round(line["step_time"], 3),
                "accuracy": {
                    name.removesuffix("_acc"): round(value, 4)
                    for name, value in line.items()
                    if name.startswith("env") and name.endswith("_acc")
                },
            }
            for line in lines
        ],
    }


def _versions(log: Path) -> dict[str, str]:
    """What train.py prints of them at its start."""
    words = [line.strip().split(": ") for line in log.read_text().splitlines()[1:8]]
    return {found[0]: found[1] for found in words if len(found) == 2}


def cost_of(dataset: str, shape: tuple[int, ...], classes: int, domains: int) -> dict[str, float]:
    """CPU seconds of an update by each method, the least of some turns."""
    algorithms: Any = importlib.import_module("domainbed.algorithms")
    registry: Any = importlib.import_module("domainbed.hparams_registry")
    hparams = OF_MLP | registry.default_hparams("ERM", dataset)
    count = hparams["batch_size"]
    batches = [(torch.rand(count, *shape), torch.randint(classes, (count,))) for _ in range(domains)]
    methods = {
        "ERM": algorithms.ERM(shape, classes, domains, hparams),
        "MetaVIB": MetaVIB(shape, classes, domains, hparams),
    }
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(TURNS + 1):
        for name, method in methods.items():
            started = time.thread_time()
            method.update(batches)
            seconds[name].append(time.thread_time() - started)
    return {name: round(min(found[1:]), 4) for name, found in seconds.items()}  # the first also sets up


def main() -> None:
    """Read, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--remark", default="", help="how these runs differ from a plain call of the script")
    parser.add_argument("--runs-only", action="store_true", help="time no update; keep what the record has")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.runs_only:
        costs = json.loads(args.out.read_text())["cpu_seconds_of_an_update"]
    else:
        costs = {name: cost_of(*given) for name, given in NETWORKS.items()}
    record = {
        "command": "python experiments/domainbed_runs.py results/domainbed.json OUTPUT_DIR...",
        "revision": git_revision(),
        "remark": args.remark,
        "cpu_seconds_of_an_update": costs,
        "runs": [run_of(folder) for folder in args.runs],
    }
    args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
