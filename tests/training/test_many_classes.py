"""Every algorithm trains with more classes than an episode has images of a domain, and learns them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from metavib.algorithms import ALGORITHMS, create
from metavib.core.settings import changed, names_of
from metavib.data.arrays import sources_of
from metavib.models.directory import preprocessing_of
from metavib.models.measuring import embed
from metavib.nn.backbone import PIXELS, Staged
from metavib.training.experiment import experiment_from
from metavib.training.step import Program, Trainee

SIDE, DOMAINS, EACH = 6, 3, 20  # pixels, domains, images of a class in each of them
CPU = torch.device("cpu")
SMALL = {"latent_width": 32, "latent_draws": 2, "classifier_draws": 2, "roles": "every", "phase_one": 0.2}
SMALL |= {"code_width": 48, "auxiliary_width": 16, "decoder_width": 16, "beta": 0.001, "feature_size": 1.0}
SMALL |= {"metric_hidden": 16, "metric_width": 8, "critic_width": 8, "permutations": 3, "width": 48}


@final
class Tiny(Staged):
    """36 pixels to 48 features, by way of as many units."""

    feature_size = 48
    stage_sizes = (48,)
    image_size = SIDE
    channels = 1
    normalisation = PIXELS

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(SIDE * SIDE, 48), nn.Linear(48, 48)

    def stages(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Iterator[Tensor]:
        units = self.first(images.flatten(1)).relu()
        yield units
        yield self.second(units).relu()


def images_of(
    classes: int, each: int = EACH, *, lacking: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A pattern for each class, an offset for each domain, and noise; a domain lacks every `lacking`th class."""
    drawn = np.random.default_rng(0)
    patterns = drawn.standard_normal((classes, SIDE * SIDE))
    labels = np.tile(np.repeat(np.arange(classes), each), DOMAINS)
    domains = np.repeat(np.arange(DOMAINS), classes * each)
    offsets = 0.5 * drawn.standard_normal((DOMAINS, SIDE * SIDE))
    pixels = patterns[labels] + offsets[domains] + 0.3 * drawn.standard_normal((len(labels), SIDE * SIDE))
    kept = np.ones(len(labels), bool) if not lacking else labels % lacking != domains % lacking
    pixels = pixels.reshape(-1, 1, SIDE, SIDE).astype(np.float32)
    return pixels[kept], labels[kept], domains[kept]


def trainee(
    name: str, classes: int, *, images: int, steps: int, each: int = EACH, lacking: int = 0
) -> Trainee:
    experiment = experiment_from(
        {"dataset": "rotated-digits", "target": "0", "algorithm": name, "seed": 0},
        {"steps": steps, "images_per_domain": images, "learning_rate": 5e-3, "warmup": 0},
    )
    known = {key: value for key, value in SMALL.items() if key in names_of(type(experiment.method))}
    experiment = replace(experiment, method=changed(experiment.method, known, "method"))
    torch.manual_seed(0)
    algorithm = create(name, Tiny(), classes, DOMAINS, experiment.method)
    pixels, labels, domains = images_of(classes, each, lacking=lacking)
    sources = sources_of(pixels, labels, domains, classes, preprocessing_of(algorithm.backbone), CPU)
    return Trainee(experiment, algorithm, sources)


def trained(run: Trainee) -> list[dict[str, list[float]]]:
    """The terms of each step; none may break down."""
    program = Program([run])
    terms = []
    while program.done < program.steps:
        program.step()
        terms.append(program.values())
        assert all(np.isfinite(values).all() for values in terms[-1].values()), terms[-1]
    assert not program.optimizer.failures(list(program.terms))
    run.algorithm.absorb(run.sources.train.batches())
    return terms


@torch.no_grad()
def accuracy(run: Trainee) -> float:
    embedded = embed(run.algorithm, run.sources.train.batches())
    answers = run.algorithm.predictive(embedded.features, None).probabilities().argmax(dim=-1)
    return float((answers == embedded.labels).float().mean())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_learns_65_classes_from_16_images_a_domain(name: str) -> None:
    run = trainee(name, 65, images=16, steps=150, lacking=5)
    trained(run)
    assert accuracy(run) > 0.4  # chance is 0.015


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_stays_finite_with_345_classes_and_two_images_a_domain(name: str) -> None:
    trained(trainee(name, 345, images=2, steps=6, each=2, lacking=2))


@pytest.mark.parametrize("name", ["erm", "metavib"])
def test_345_classes_of_20_images_are_learnt(name: str) -> None:
    run = trainee(name, 345, images=64, steps=150)
    trained(run)
    assert accuracy(run) > 0.5  # chance is 0.003


def test_a_folder_of_more_classes_than_images_of_an_episode_is_trained_and_measured(
    make_folder: Any, metavib: Any, tmp_path: Path
) -> None:
    names = " ".join(f"c{number}" for number in range(20))
    folder = make_folder(tmp_path / "images", "art photo sketch", names)
    flags = ["--target", "sketch", "--seed", 1, "--steps", 3, "--backbone", "digits", "--weights", "none"]
    for setting in ("images_per_domain=6", "latent_width=8", "repeats=2", "validations=1"):
        flags += ["--set", setting]
    status, out, err = metavib("train", folder, "--out", tmp_path / "run", *flags, "--json")
    assert status == 0, err
    assert len(json.loads(out)["classes"]) == 20
