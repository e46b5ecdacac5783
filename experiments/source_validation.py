"""How the settings for PACS were chosen: by source validation alone.

The target's images are not opened. Each variant is trained on the training parts of the three source domains, and
measured on their validation parts after the last step: accuracy, %, and the mean of -log p.

    python experiments/source_validation.py OUT.json --rounds experiments/source_validation_rounds.json

A round has targets, seeds, settings that its variants share, and the variants: settings, and the algorithm.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from metavib.algorithms import algorithm_named
from metavib.core.settings import names_of
from metavib.data.dataset import Dataset
from metavib.data.opening import Sources, open_sources
from metavib.models.directory import preprocessing_of
from metavib.models.measuring import embed, measure_at_mean
from metavib.training.experiment import experiment_from
from metavib.training.first_network import initial_algorithm
from metavib.training.optimizer import Training
from metavib.training.step import Program, Trainee

# What a variant does not name, so that a round means the same whatever the presets become.
OTHERWISE = {
    "learning_rate": 5e-4,
    "backbone_rate": 0.2,
    "images_per_domain": 64,
    "latent_width": 1024,
    "beta": 0.01,
    "feature_size": 1.0,
    "initial_log_variance": 0.0,
    "roles": "one",
}


class Bench:
    """Opens each dataset and each set of sources once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.datasets: dict[int, Dataset] = {}
        self.sources: dict[tuple[str, int], Sources] = {}

    def measure(self, target: str, seed: int, settings: Mapping[str, Any]) -> dict[str, float]:
        """Train one variant and measure it on source validation."""
        begun = time.perf_counter()
        values = dict(settings)
        algorithm_name = values.pop("algorithm", "metavib")
        known = {*names_of(Training), *names_of(algorithm_named(algorithm_name).Config)}
        values = {name: value for name, value in OTHERWISE.items() if name in known} | values
        names = {"dataset": "pacs", "target": target, "seed": seed, "algorithm": algorithm_name}
        experiment = experiment_from(names, values)
        if seed not in self.datasets:
            self.datasets[seed] = experiment.dataset_in(None)
        dataset = self.datasets[seed]
        split = experiment.split_of(dataset)
        algorithm: Any = initial_algorithm(experiment, len(split.classes), len(split.train), self.device)
        if (target, seed) not in self.sources:
            self.sources[target, seed] = open_sources(
                dataset, split, preprocessing_of(algorithm.backbone), self.device, skip_bad=False
            )
        sources = self.sources[target, seed]
        program = Program([Trainee(experiment, algorithm, sources)])
        for _ in range(experiment.training.steps):
            program.step()
        algorithm.absorb(sources.train.batches())
        found = measure_at_mean(algorithm, embed(algorithm, sources.validation.batches()))
        return {
            "accuracy": round(100 * found.accuracy, 2),
            "loss": round(found.loss, 4),
            "seconds": round(time.perf_counter() - begun, 1),
        }


def main() -> None:
    """Measure every variant of every round, print the means, write the record after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=Path, required=True)
    arguments = parser.parse_args()
    bench = Bench(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    command = f"python experiments/source_validation.py {arguments.out.name} --rounds {arguments.rounds}"
    record = []
    for one in json.loads(arguments.rounds.read_text()):
        results: dict[str, list[dict[str, Any]]] = {}
        record.append(one | {"results": results})
        for name, variant in one["variants"].items():
            results[name] = [
                {"target": target, "seed": seed} | bench.measure(target, seed, one["shared"] | variant)
                for target in one["targets"]
                for seed in one["seeds"]
            ]
            accuracy = statistics.mean(cell["accuracy"] for cell in results[name])
            loss = statistics.mean(cell["loss"] for cell in results[name])
            print(f"{name:40} {accuracy:6.2f} % {loss:.3f}", flush=True)
            arguments.out.write_text(json.dumps({"command": command, "rounds": record}, indent=1))


if __name__ == "__main__":
    main()
