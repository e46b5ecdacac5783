"""How the settings of the digit network were chosen, without a look at any target.

The outermost angle is hidden altogether: with 0 degrees hidden, 15 is left out and the model learns from 30 to 75;
with 75 hidden, 60 is left out and it learns from 0 to 45. So each variant must reach beyond the angles seen,
as it must for the real targets 0 and 75, whose images it never meets. A group trains as one program.

    python experiments/hidden_angle.py OUT.json --rounds experiments/hidden_angle_rounds.json

A variant is a set of settings, and of things that are tried here only: `backbone` and `inference` ("torch": first
weights by torch's own way) and `size` of the first features (a number, or "as they are"). It is measured after the
last step, and with the mean of the second half's weights.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from metavib.data.dataset import Dataset, DomainImages, Listing
from metavib.data.opening import LabelledRows, open_sources, open_target
from metavib.data.sources.catalog import open_dataset
from metavib.data.splits import split_domains
from metavib.models.directory import preprocessing_of
from metavib.models.measuring import embed, measure_at_mean
from metavib.training.experiment import experiment_from
from metavib.training.first_network import initial_algorithm
from metavib.training.step import Program, Trainee

AVERAGED = ", mean weights of the second half"
TASKS = {"0": "15", "75": "60"}  # the angle that is hidden, the angle that is left out


class Hidden(Dataset):
    """A dataset without one of its domains."""

    def __init__(self, whole: Dataset, hidden: str) -> None:
        self.whole, self.name, self.channels, self.protocol = (
            whole,
            whole.name,
            whole.channels,
            whole.protocol,
        )
        self.domains = tuple(domain for domain in whole.domains if domain != hidden)

    def listing(self, domain: str) -> Listing:
        assert domain in self.domains
        return self.whole.listing(domain)

    def images(self, domain: str, size: int, **options: Any) -> DomainImages:
        assert domain in self.domains
        return self.whole.images(domain, size, **options)


class Cell(NamedTuple):
    """One variant on one task with one seed."""

    variant: str
    left_out: str
    trainee: Trainee
    unseen: LabelledRows


def cell(
    name: str, variant: Mapping[str, Any], left_out: str, seed: int, dataset: Dataset, steps: int
) -> Cell:
    """Build a run; what is no setting is done to the network by hand."""
    settings = {
        "steps": steps,
        "initialisation": "network",
        "feature_size": 1.0,
        "learning_rate": 5e-4,
        "beta": 0.01,
    }
    settings |= {
        key: value
        for key, value in variant.items()
        if key not in ("algorithm", "backbone", "inference", "size")
    }
    algorithm_name = variant.get("algorithm", "metavib")
    if algorithm_name == "erm":
        settings.pop("feature_size")
    if algorithm_name in ("erm", "baseline"):
        settings.pop("beta", None)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    values = {"dataset": "rotated-mnist", "target": left_out, "algorithm": algorithm_name, "seed": seed}
    experiment = experiment_from(values, settings)
    split = split_domains(dataset, left_out, seed=seed, validation_share=0.1)
    algorithm: Any = initial_algorithm(experiment, len(split.classes), len(split.train), device)
    torch.manual_seed(seed)
    if variant.get("backbone") == "torch":
        begin_as_torch_does(algorithm.backbone)
    if variant.get("inference") == "torch":
        begin_as_torch_does(algorithm.infer_classifier)
        begin_as_torch_does(algorithm.infer_latent)
    if "size" in variant:
        measured = algorithm.begin

        def begin(episode: Any) -> None:
            measured(episode)
            if variant["size"] == "as they are":
                algorithm.feature_scale.fill_(1.0)
            else:
                algorithm.feature_scale.div_(variant["size"])

        algorithm.begin = begin
    preprocessing = preprocessing_of(algorithm.backbone)
    sources = open_sources(dataset, split, preprocessing, device, skip_bad=False)
    unseen, _ = open_target(dataset, split, preprocessing, device, sources.digests, skip_bad=False)
    return Cell(name, left_out, Trainee(experiment, algorithm, sources), unseen)


def begin_as_torch_does(module: nn.Module) -> None:
    """Draw the weights again by torch's own way."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            layer.reset_parameters()


def compare(
    variants: Mapping[str, Any], seeds: Sequence[int], steps: int
) -> dict[str, dict[str, list[float]]]:
    """Accuracy on the left-out angle after the last step, by variant and angle, one number a seed."""
    datasets = {
        (hidden, seed): Hidden(
            open_dataset("rotated-mnist", data_root=None, protocol="paper", seed=seed), hidden
        )
        for hidden in TASKS
        for seed in seeds
    }
    cells = [
        cell(name, variant, left_out, seed, datasets[hidden, seed], steps)
        for name, variant in variants.items()
        for hidden, left_out in TASKS.items()
        for seed in seeds
    ]
    program = Program([one.trainee for one in cells])
    averaged = {name: torch.zeros_like(values) for name, values in program.parameters.items()}
    for step in range(steps):
        program.step()
        if step >= steps // 2:
            for name, values in program.parameters.items():
                averaged[name].add_(values, alpha=1 / (steps - steps // 2))
    found: dict[str, dict[str, list[float]]] = {}
    _measure(cells, "", found)
    for name, values in program.parameters.items():
        values.copy_(averaged[name])
    _measure(cells, AVERAGED, found)
    return found


def _measure(cells: Sequence[Cell], suffix: str, found: dict[str, dict[str, list[float]]]) -> None:
    for one in cells:
        algorithm = one.trainee.algorithm
        algorithm.absorb(one.trainee.sources.train.batches())
        accuracy = 100 * measure_at_mean(algorithm, embed(algorithm, one.unseen.batches())).accuracy
        of_variant = found.setdefault(one.variant + suffix, {})
        of_variant.setdefault(one.left_out, []).append(round(accuracy, 2))


def main() -> None:
    """Compare every group of every round, print the means, write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=Path, required=True)
    arguments = parser.parse_args()
    record = []
    for one in json.loads(arguments.rounds.read_text()):
        results: dict[str, Any] = {}
        record.append(one | {"accuracy": results})
        for group in one["groups"]:
            of_group = compare(group, one["seeds"], one["steps"])
            for name, by_angle in of_group.items():
                means = {angle: round(statistics.mean(values), 2) for angle, values in by_angle.items()}
                print(f"{name:50} {means} mean {statistics.mean(means.values()):.2f}", flush=True)
            results |= of_group
            command = f"python experiments/hidden_angle.py {arguments.out.name} --rounds {arguments.rounds}"
            arguments.out.write_text(json.dumps({"command": command, "rounds": record}, indent=1))


if __name__ == "__main__":
    main()
