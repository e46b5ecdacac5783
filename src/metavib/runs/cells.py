"""A run of a grid, and which runs of a grid may be stacked: those that share algorithm, network and shapes."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from metavib.algorithms import algorithm_named
from metavib.training.experiment import Experiment

# What may differ between the runs of a stack: numbers that a step reads, and what each run has for itself.
FREE_TRAINING = (
    "learning_rate",
    "backbone_rate",
    "initialisation",
    "schedule",
    "warmup",
    "clip_norm",
    "validation_share",
    "patience",
    "selection",
)


@dataclass(frozen=True)
class Cell:
    """A run of a grid, and its directory."""

    experiment: Experiment
    out: Path


def stack_key(experiment: Experiment) -> str:
    """The key of a stack: runs with the same key can be trained as one program."""
    values = experiment.to_json()
    for name in ("target", "seed", "preset"):
        del values[name]
    # As many source domains: an episode may take them all.
    values["without"] = len(values["without"]) + (experiment.target is not None)
    for name in FREE_TRAINING:
        del values["training"][name]
    for name in algorithm_named(experiment.algorithm).STACKABLE:
        values["method"].pop(name, None)
    return json.dumps(values, sort_keys=True)


def stackable_groups(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """The cells that could be stacked with one another."""

    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(stack_key(cell.experiment), []).append(cell)
    yield from (groups[key] for key in sorted(groups))
