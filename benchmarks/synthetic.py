"""Any number of tiny images in any number of classes and domains, and a network that costs next to nothing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from metavib.algorithms import algorithm_named
from metavib.core.settings import names_of
from metavib.data.dataset import Dataset, DomainImages, Listing, Reading
from metavib.data.opening import open_sources
from metavib.data.splits import split_domains
from metavib.models.directory import preprocessing_of
from metavib.nn.backbone import PIXELS, Backbone
from metavib.nn.backbones import BACKBONES
from metavib.training.experiment import experiment_from
from metavib.training.first_network import initial_algorithm
from metavib.training.optimizer import Training
from metavib.training.step import Trainee

SIDE = 8  # pixels
SETTINGS = {"latent_width": 64, "roles": "one", "images_per_domain": 64, "width": 16, "auxiliary_width": 16}


@final
class Synthetic(Dataset):
    """So many images of noise in so many domains, all classes in each; no two images alike."""

    name = "synthetic"
    channels = 1
    protocol = "noise"

    def __init__(self, images: int, classes: int, domains: int) -> None:
        self.domains = tuple(f"a{number}" for number in range(domains))
        self.count, self.classes = images // domains, classes
        self._listings: dict[str, Listing] = {}

    def listing(self, domain: str) -> Listing:
        if domain not in self._listings:
            names = tuple(f"{domain}/{number}" for number in range(self.count))
            labels = tuple(str(number % self.classes) for number in range(self.count))
            self._listings[domain] = Listing(domain, names, labels, ("",) * self.count)
        return self._listings[domain]

    def images(
        self, domain: str, size: int, *, skip_bad: bool = False, progress: Reading | None = None
    ) -> DomainImages:
        random = np.random.default_rng(self.domains.index(domain))
        pixels = random.integers(0, 256, (self.count, 1, size, size), dtype=np.uint8)
        return DomainImages(pixels, tuple(range(self.count)), self.listing(domain).names, ())


@final
class Speck(Backbone):
    """One layer from 8 x 8 pixels to 32 features."""

    feature_size = 32
    image_size = SIDE
    channels = 1
    normalisation = PIXELS

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(SIDE**2, self.feature_size)

    def extract(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Tensor:
        return self.layer(images.flatten(1))


@contextlib.contextmanager
def speck_is_known() -> Iterator[None]:
    """While this lasts, experiments may name the network."""
    BACKBONES["speck"] = Speck
    try:
        yield
    finally:
        del BACKBONES["speck"]


def run_on(dataset: Dataset, algorithm: str, device: torch.device, **settings: Any) -> tuple[Trainee, float]:
    """A run on the dataset, its first domain unseen; and the seconds until its images were ready."""
    values = {"dataset": "pacs", "target": dataset.domains[0], "algorithm": algorithm, "seed": 0}
    known = {*names_of(algorithm_named(algorithm).Config), *names_of(Training)}
    assignments = {name: value for name, value in (SETTINGS | settings).items() if name in known}
    experiment = experiment_from(values | {"backbone": "speck", "weights": "none"}, assignments)
    for domain in dataset.domains:
        dataset.listing(domain)  # made once, and not part of what is measured
    started = time.perf_counter()
    split = split_domains(dataset, experiment.target, seed=0, validation_share=0.1)
    divided = time.perf_counter() - started
    built = initial_algorithm(experiment, len(split.classes), len(split.train), device)
    started = time.perf_counter()
    sources = open_sources(dataset, split, preprocessing_of(built.backbone), device, skip_bad=False)
    assert sources.train.store.resident
    return Trainee(experiment, built, sources), divided + time.perf_counter() - started
