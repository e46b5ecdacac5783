"""How the settings of every method were chosen for the tables of all methods: the same budget for each, no target.

A task hides one domain altogether, as if it were the target, leaves out another one and learns from the rest: what
counts is the accuracy on the domain left out, after the last step. Every method has as many candidates, of which
the first is the preset's, and every candidate has the same tasks, seeds, steps and images.

    python experiments/equal_tuning.py OUT.json --rounds experiments/equal_tuning_rounds.json --round NAME

Candidates of small networks train as one program. The record grows method by method, and a method that it has
already is not trained again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from metavib.data.dataset import Dataset
from metavib.data.opening import LabelledRows, Sources, open_sources, open_target
from metavib.models.directory import preprocessing_of
from metavib.models.measuring import embed, measure_at_mean
from metavib.training.experiment import experiment_from
from metavib.training.first_network import initial_algorithm
from metavib.training.step import Program, Trainee

Settings = Mapping[str, Any]


class Task(NamedTuple):
    """Which domain is hidden, which is left out to be measured on, and the seed."""

    hidden: str
    left_out: str
    seed: int


class Opened(NamedTuple):
    """The images of a task."""

    sources: Sources
    unseen: LabelledRows


class Bench:
    """Opens the images of a task once."""

    def __init__(self, dataset: str, device: torch.device) -> None:
        self.dataset, self.device = dataset, device
        self.datasets: dict[int, Dataset] = {}
        self.opened: dict[Task, Opened] = {}

    def trainee(self, algorithm: str, settings: Settings, task: Task) -> Trainee:
        """One candidate on one task, ready to be trained."""
        values = {
            "dataset": self.dataset,
            "target": task.left_out,
            "without": task.hidden,
            "algorithm": algorithm,
            "seed": task.seed,
        }
        experiment = experiment_from(values, settings)
        if task.seed not in self.datasets:
            self.datasets[task.seed] = experiment.dataset_in(None)
        dataset = self.datasets[task.seed]
        split = experiment.split_of(dataset)
        assert task.hidden not in split.train
        network = initial_algorithm(experiment, len(split.classes), len(split.train), self.device)
        if task not in self.opened:
            ready = preprocessing_of(network.backbone)
            sources = open_sources(dataset, split, ready, self.device, skip_bad=False)
            unseen, _ = open_target(dataset, split, ready, self.device, sources.digests, skip_bad=False)
            self.opened[task] = Opened(sources, unseen)
        return Trainee(experiment, network, self.opened[task].sources)

    def train(self, algorithm: str, runs: Sequence[tuple[Settings, Task]]) -> list[dict[str, float]]:
        """Train these together and measure each where it counts, and on source validation."""
        trainees = [self.trainee(algorithm, settings, task) for settings, task in runs]
        program = Program(trainees)
        for _ in range(trainees[0].experiment.training.steps):
            program.step()
        found = []
        for trainee, (_, task) in zip(trainees, runs, strict=True):
            trainee.algorithm.absorb(trainee.sources.train.batches())
            parts = {"accuracy": self.opened[task].unseen, "source_validation": trainee.sources.validation}
            measured = {
                name: 100
                * measure_at_mean(trainee.algorithm, embed(trainee.algorithm, rows.batches())).accuracy
                for name, rows in parts.items()
            }
            found.append({name: round(value, 2) for name, value in measured.items()})
        return found


def tuned(
    bench: Bench, algorithm: str, candidates: Sequence[Settings], shared: Settings, tasks: Sequence[Task]
) -> Any:
    """Every candidate on every task."""
    begun = time.perf_counter()
    runs = [(dict(shared) | dict(candidate), task) for candidate in candidates for task in tasks]
    network = bench.trainee(algorithm, *runs[0]).algorithm.backbone
    width = len(runs) if network.small else 1
    measured = [
        one
        for first in range(0, len(runs), width)
        for one in bench.train(algorithm, runs[first : first + width])
    ]
    results = []
    for number, candidate in enumerate(candidates):
        own = measured[number * len(tasks) : (number + 1) * len(tasks)]
        mean = round(statistics.mean(one["accuracy"] for one in own), 2)
        results.append({"settings": candidate, "mean": mean, "tasks": own})
    best = max(results, key=lambda result: result["mean"])  # of equals the first
    return {
        "chosen": best["settings"],
        "candidates": results,
        "seconds": round(time.perf_counter() - begun, 1),
    }


def main() -> None:
    """Tune the methods of a round, print what was chosen, write the record after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=Path, required=True)
    parser.add_argument("--round", required=True)
    parser.add_argument("--methods", default="", help="some of the round's, as A,B")
    arguments = parser.parse_args()
    one = json.loads(arguments.rounds.read_text())[arguments.round]
    tasks = [Task(hidden, left_out, seed) for hidden, left_out in one["tasks"] for seed in one["seeds"]]
    bench = Bench(one["dataset"], torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    record: dict[str, Any] = {"methods": {}}
    if arguments.out.exists():
        record = json.loads(arguments.out.read_text())
    record |= {name: one[name] for name in ("dataset", "tasks", "seeds", "shared")}
    record["command"] = (
        f"python experiments/equal_tuning.py {arguments.out.name}"
        f" --rounds {arguments.rounds} --round '{arguments.round}'"
    )
    chosen_methods = arguments.methods.split(",") if arguments.methods else list(one["methods"])
    for name in chosen_methods:
        if name in record["methods"]:
            continue
        method = one["methods"][name]
        found = tuned(bench, method["algorithm"], method["candidates"], one["shared"], tasks)
        record["methods"][name] = found
        best = max(result["mean"] for result in found["candidates"])
        print(f"{name:20} {best:6.2f} % {found['seconds']:5.1f} s {found['chosen']}", flush=True)
        arguments.out.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
