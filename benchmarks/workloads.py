"""What is timed: runs on the embedded digits, and on images of noise the size of PACS's."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch

from metavib.data.dataset import Dataset, DomainImages, Listing, Reading
from metavib.data.opening import open_sources
from metavib.data.sources.catalog import open_dataset
from metavib.data.splits import split_domains
from metavib.models.directory import preprocessing_of
from metavib.training.experiment import experiment_from
from metavib.training.first_network import initial_algorithm
from metavib.training.step import Trainee

ANGLES = ("0", "15", "30", "45", "60", "75")


@final
class Noise(Dataset):
    """Four domains of seven classes: images of noise, which take as long as any."""

    name = "noise"
    domains = ("a", "b", "c", "d")
    channels = 3
    protocol = "noise"

    def __init__(self, per_class: int = 20) -> None:
        self.per_class = per_class

    def listing(self, domain: str) -> Listing:
        classes = tuple(str(label) for label in range(7) for _ in range(self.per_class))
        names = tuple(f"{domain}/{number}" for number in range(len(classes)))
        return Listing(domain, names, classes, ("",) * len(names))

    def images(
        self, domain: str, size: int, *, skip_bad: bool = False, progress: Reading | None = None
    ) -> DomainImages:
        count = 7 * self.per_class
        random = np.random.default_rng(self.domains.index(domain))
        pixels = random.integers(0, 256, (count, 3, size, size), dtype=np.uint8)
        return DomainImages(pixels, tuple(range(count)), tuple(f"{domain}{n}" for n in range(count)), ())


def digit_runs(count: int, algorithm: str, images: int, device: torch.device) -> list[Trainee]:
    """So many runs on the embedded digits, by the fast preset: all targets, then the next seed."""
    datasets: dict[int, Dataset] = {}
    runs = []
    for number in range(count):
        target, seed = ANGLES[number % len(ANGLES)], number // len(ANGLES)
        if seed not in datasets:
            datasets[seed] = open_dataset("rotated-digits", data_root=None, protocol=None, seed=seed)
        values = {"dataset": "rotated-digits", "target": target, "algorithm": algorithm, "seed": seed}
        runs.append(trainee(values, {"images_per_domain": images}, datasets[seed], device))
    return runs


def image_run(algorithm: str, images: int, device: torch.device) -> Trainee:
    """One run of SqueezeNet by the fast preset of PACS, on noise."""
    values = {"dataset": "pacs", "target": "a", "algorithm": algorithm, "seed": 0, "weights": "none"}
    return trainee(values, {"images_per_domain": images}, Noise(), device)


def network_run(network: str, algorithm: str, images: int, device: torch.device) -> Trainee:
    """One run of any network by the fast preset of photographs, on noise.

    Its weights are random, but its normalisation is that of a network with trained ones.
    """
    values = {"dataset": "pacs", "target": "a", "algorithm": algorithm, "seed": 0}
    run = trainee(
        values | {"backbone": network, "weights": "none"}, {"images_per_domain": images}, Noise(), device
    )
    run.algorithm.backbone.freeze_normalisation()
    run.algorithm.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return run


def trainee(
    values: dict[str, Any], assignments: dict[str, Any], dataset: Dataset, device: torch.device
) -> Trainee:
    """A run, ready to be stepped."""
    experiment = experiment_from(values, assignments)
    split = split_domains(dataset, experiment.target, seed=experiment.seed, validation_share=0.1)
    classes, domains = len(split.classes), len(split.train)
    algorithm = initial_algorithm(experiment, classes, domains, device)
    sources = open_sources(dataset, split, preprocessing_of(algorithm.backbone), device, skip_bad=False)
    return Trainee(experiment, algorithm, sources)
