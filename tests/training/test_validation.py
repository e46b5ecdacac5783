"""Validation looks at images that it can afford, the same ones each time, and at every class."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from metavib.data.dataset import Dataset, DomainImages, Listing, digest_of
from metavib.data.opening import LabelledRows, open_sources
from metavib.data.splits import split_domains
from metavib.data.store.storage import ImageStore
from metavib.data.transforms import Preprocessing
from metavib.models.directory import build_algorithm, preprocessing_of
from metavib.nn.backbone import Backbone
from metavib.training.experiment import experiment_from
from metavib.training.loop import Run, train
from metavib.training.run_directory import RunDirectory
from metavib.training.validation import (
    BACK_AND_FORTH,
    FEW,
    SHARE,
    Effort,
    some_of,
    steps_between,
    work_of_a_step,
)

CPU = torch.device("cpu")


def rows_of(counts: list[list[int]]) -> LabelledRows:
    """So many images of each class (columns) of each domain (rows)."""
    labels = [label for domain in counts for label, count in enumerate(domain) for _ in range(count)]
    parts = [np.zeros((sum(domain), 1, 1, 1), dtype=np.uint8) for domain in counts]
    store = ImageStore(parts, CPU)
    preprocessing = Preprocessing(1, 1, (0.0,), (1.0,))
    return LabelledRows(store, preprocessing, torch.arange(len(labels)), torch.tensor(labels))


def groups_in(images: LabelledRows) -> Counter[tuple[int, int]]:
    domains = np.searchsorted(images.store.ends, images.rows.numpy(), side="right")
    return Counter(zip(domains.tolist(), images.labels.tolist(), strict=True))


def test_some_images_have_the_same_share_of_each_class_of_each_domain() -> None:
    images = rows_of([[40, 20], [100, 40]])
    chosen = some_of(images, 20, key=3)
    assert groups_in(chosen) == {(0, 0): 4, (0, 1): 2, (1, 0): 10, (1, 1): 4}
    assert chosen.rows.tolist() == sorted(set(chosen.rows.tolist()))
    assert torch.equal(chosen.labels, images.labels[chosen.rows])


def test_no_class_is_without_an_image_however_few_there_are() -> None:
    images = rows_of([[1000, 1, 0, 7], [1000, 0, 2, 0]])
    assert {label for _, label in groups_in(some_of(images, 4, key=1))} == {0, 1, 2, 3}
    assert len(groups_in(some_of(images, 5, key=1))) == 5  # then every class of every domain


def test_the_choice_depends_on_the_key_alone() -> None:
    images = rows_of([[50, 50], [50, 50]])
    first, again, other = (some_of(images, 20, key=key) for key in (1, 1, 2))
    assert torch.equal(first.rows, again.rows)
    assert not torch.equal(first.rows, other.rows)
    assert some_of(images, 200, key=1) is images


class Many(Dataset):
    """Four domains of many images each, so that all of them are too many to look at again and again."""

    name, channels, protocol = "many", 1, "a test"
    domains = ("a", "b", "c", "d")
    images_of_a_domain = 200

    def listing(self, domain: str) -> Listing:
        names = tuple(f"{domain}/{place}" for place in range(self.images_of_a_domain))
        return Listing(domain, names, ("cat", "dog") * (self.images_of_a_domain // 2), ("",) * len(names))

    def images(self, domain: str, size: int, **options: Any) -> DomainImages:
        random = np.random.default_rng(self.domains.index(domain))
        shape = (self.images_of_a_domain, 1, size, size)
        pixels = random.integers(0, 255, shape, dtype=np.uint8)
        digests = tuple(digest_of(one.tobytes()) for one in pixels)
        return DomainImages(pixels, tuple(range(len(pixels))), digests, ())


def prepared(folder: Path, algorithm: str, **changes: Any) -> Run:
    values = {"dataset": "rotated-digits", "target": "d", "seed": 1, "algorithm": algorithm, "preset": "demo"}
    small: dict[str, Any] = {"images_per_domain": 8, "validation_share": 0.4}
    if algorithm == "metavib":
        small |= {"latent_width": 16, "latent_draws": 2, "classifier_draws": 2}
    experiment = experiment_from(values, small | changes)
    built = build_algorithm(algorithm, experiment.method, "digits", "none", 2, 1, domains=3)
    split = split_domains(Many(), "d", seed=1, validation_share=experiment.training.validation_share)
    sources = open_sources(Many(), split, preprocessing_of(built.backbone), CPU, skip_bad=False)
    return Run(experiment, built, sources, RunDirectory(folder), "the split")


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the batches that pass through a network and are not differentiated."""
    sizes: list[int] = []
    forward = Backbone.forward

    def counting(self: Backbone, images: torch.Tensor, *more: Any) -> torch.Tensor:
        if not torch.is_grad_enabled():
            sizes.append(len(images))
        return forward(self, images, *more)

    monkeypatch.setattr(Backbone, "forward", counting)
    return sizes


@pytest.mark.parametrize("algorithm", ["metavib", "erm"])
def test_validation_passes_few_images_beside_those_that_are_trained_on(
    algorithm: str, tmp_path: Path, passed: list[int]
) -> None:
    run = prepared(tmp_path, algorithm, steps=60, validations=5)
    known = len(run.sources.train.rows)
    assert known + len(run.validation) == 600
    at_validations = []
    for progress in train([run], run.directory.checkpoints):
        if progress.step > 0:
            at_validations.append(sum(passed))
        passed[:] = passed if progress.step > 0 else []  # what fits the features to the data is no validation
    trained = 60 * 3 * 8 * BACK_AND_FORTH
    assert 0 < at_validations[-1] <= SHARE * trained
    assert at_validations[-1] == 5 * run.effort.validation
    in_the_end = sum(passed) - at_validations[-1]
    assert in_the_end == (known if algorithm == "metavib" else 0)  # of the model that is kept, all of them


def test_the_model_that_is_kept_has_class_means_of_all_training_images(tmp_path: Path) -> None:
    run = prepared(tmp_path, "metavib", steps=10)
    list(train([run], run.directory.checkpoints))
    kept = run.algorithm.class_means()
    assert kept is not None
    before = kept.clone()
    run.algorithm.absorb(run.validated_with.known.batches())
    assert not torch.equal(run.algorithm.class_means(), before)
    run.algorithm.absorb(run.sources.train.batches())
    assert torch.equal(run.algorithm.class_means(), before)


@pytest.mark.parametrize(
    ("changes", "whole"),
    [
        (
            {"steps": 300, "validations": 4, "images_per_domain": 64},
            True,
        ),  # the demo: 600 of 43,200 is little
        ({"steps": 60, "validations": 5}, False),
    ],
)
def test_all_images_are_looked_at_where_that_is_cheap(changes: Any, whole: bool, tmp_path: Path) -> None:
    run = prepared(tmp_path, "metavib", **changes)
    assert (run.validated_with.known is run.sources.train) == whole
    assert (run.validated_with.judged is run.validation) == whole


def test_a_run_of_a_few_steps_still_looks_at_some_images_of_all_classes(tmp_path: Path) -> None:
    run = prepared(tmp_path, "metavib", steps=5, images_per_domain=2)
    chosen = run.validated_with
    assert chosen.passed == len(chosen.judged) + len(chosen.known.rows) == FEW
    assert len(groups_in(chosen.judged)) == 6
    assert isinstance(chosen.known, LabelledRows)
    assert len(groups_in(chosen.known)) == 6


def test_the_digits_of_the_demo_are_validated_with_all_images() -> None:
    demo = experiment_from(
        {"dataset": "rotated-digits", "target": "75", "algorithm": "metavib", "preset": "demo", "seed": 0}
    ).training
    images = 5_000 + 500
    assert images <= SHARE * steps_between(demo) * work_of_a_step(demo, 5)


@pytest.mark.parametrize(("done", "validations"), [(0, 0), (2, 0), (3, 1), (9, 3), (10, 4)], ids=str)
def test_the_last_step_is_validated_too(done: int, validations: int) -> None:
    effort = Effort(steps=10, steps_between=3, step=100, validation=7, measuring=1000)
    assert effort.validations(done) == validations
    assert effort.after(done) == 100 * done + 7 * validations
    assert effort.in_all == 1000 + 28 + 1000
