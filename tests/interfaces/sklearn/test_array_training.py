"""Training on arrays: the backbone that suits them, and the network that comes back from plain arrays."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from small_networks import Plain

from metavib import MetaVIBClassifier
from metavib.core.errors import UserError
from metavib.data.transforms import Augmentation
from metavib.interfaces.sklearn import array_training
from metavib.interfaces.sklearn.array_training import (
    arrays_of,
    as_pixels,
    backbone_for,
    rebuilt,
    train,
    untrained,
)
from metavib.nn.backbones import BACKBONES
from metavib.training.experiment import Experiment, experiment_from

CPU = torch.device("cpu")


def experiment(backbone: str = "digits", **settings: object) -> Experiment:
    values = {"dataset": "arrays", "target": "none", "seed": 3, "backbone": backbone, "weights": "none"}
    small = {"steps": 4, "images_per_domain": 4, "latent_width": 8, "latent_draws": 2, "classifier_draws": 2}
    return experiment_from(values, small | settings)


def flushes() -> bool:
    return bool((torch.tensor([1e-39]) * 1.0).item() == 0.0)


@pytest.mark.parametrize(
    ("shape", "name", "expected"),
    [
        ((4, 7), "auto", "mlp"),
        ((4, 7), "mlp", "mlp"),
        ((4, 8, 8), "auto", "digits"),
        ((4, 1, 8, 8), "auto", "digits"),
        ((4, 8, 8, 3), "auto", "squeezenet"),
        ((4, 8, 8), "resnet18", "resnet18"),
    ],
)
def test_the_backbone_suits_the_samples(shape: tuple[int, ...], name: str, expected: str) -> None:
    assert backbone_for(np.zeros(shape), name) == expected


@pytest.mark.parametrize(
    ("shape", "name", "message"),
    [
        ((4, 7), "digits", "use backbone='mlp'"),
        ((4, 8, 8), "mlp", r"X\.reshape"),
        ((4, 7), "mpl", "did you mean 'mlp'"),
        ((4, 5, 8, 8), "auto", "it takes features"),
    ],
)
def test_a_backbone_that_does_not_is_refused(shape: tuple[int, ...], name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        backbone_for(np.zeros(shape), name)


def test_losses_are_read_as_often_as_said_and_the_last_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_training, "READ", 2)
    images = np.random.default_rng(0).random((12, 8, 8))
    seen: list[int] = []
    history = train(
        own := experiment(steps=5),
        untrained(own, images, 2, 0, CPU),
        images,
        np.arange(12) % 2,
        np.arange(12) // 2 % 3,
        CPU,
        lambda step, terms: seen.append(step),
    )
    assert history["step"] == seen == [2, 4, 5]
    assert history.keys() == {"step", "classification", "bottleneck"}
    assert np.isfinite(list(history.values())).all()


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(("shape", "backbone", "threads"), [((12, 8, 8), "digits", 2), ((12, 7), "mlp", 1)])
def test_arithmetic_is_changed_in_a_step_alone(
    shape: tuple[int, ...], backbone: str, threads: int, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = np.random.default_rng(0).random(shape)
    during: list[tuple[bool, int]] = []

    def interrupt(self: object) -> None:
        during.append((flushes(), torch.get_num_threads()))
        raise KeyboardInterrupt

    monkeypatch.setattr(array_training.Program, "step", interrupt)
    usual = torch.get_num_threads()
    torch.set_flush_denormal(before)
    torch.set_num_threads(2)
    try:
        own = dataclasses.replace(experiment(), backbone=backbone, augmentation=Augmentation())
        algorithm = untrained(own, samples, 2, 5, CPU)
        with pytest.raises(KeyboardInterrupt):
            train(own, algorithm, samples, np.arange(12) % 2, np.arange(12) // 2 % 3, CPU)
        assert during == [(True, threads)]
        assert (flushes(), torch.get_num_threads()) == (before, 2)
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(usual)


def test_the_network_comes_back_from_plain_arrays() -> None:
    images = np.random.default_rng(0).random((12, 8, 8))
    own = experiment()
    algorithm = untrained(own, images, 2, 0, CPU)
    train(own, algorithm, images, np.arange(12) % 2, np.arange(12) // 2 % 3, CPU)
    arrays = arrays_of(algorithm)
    assert all(type(values) is np.ndarray for values in arrays.values())
    back = rebuilt(own.to_json(), arrays, 2, CPU)
    pixels = torch.from_numpy(as_pixels(images, algorithm.backbone))
    with torch.no_grad():
        expected = algorithm.predictive(algorithm.embed(pixels), None).probabilities()
        assert torch.equal(back.predictive(back.embed(pixels), None).probabilities(), expected)
    back.backbone.convolution_1.weight.data.zero_()
    assert arrays["backbone.convolution_1.weight"].any()  # the arrays are not the network's own memory


def test_a_network_that_was_pretrained_comes_back_with_its_statistics() -> None:
    own = experiment("resnet18")
    backbone = BACKBONES["resnet18"]()
    backbone.freeze_normalisation()
    kind = type(untrained(own, np.zeros((2, 8, 8)), 2, 0, CPU))
    arrays = arrays_of(kind(backbone, 2, own.method))
    record = own.to_json() | {"weights": "imagenet"}
    assert "backbone.bn1.running_mean" in rebuilt(record, arrays, 2, CPU).state_dict()


@pytest.mark.parametrize("backbone", ["timm:test_vit", Plain, Plain()], ids=["timm", "function", "module"])
def test_any_network_can_be_fitted_pickled_and_asked_again(backbone: Any) -> None:
    pytest.importorskip("timm")
    generator = np.random.default_rng(0)
    images = generator.integers(0, 255, (24, 20, 20, 3), dtype=np.uint8)
    labels, domains = np.arange(24) % 2, np.arange(24) % 3
    small: dict[str, Any] = {"latent_draws": 2, "classifier_draws": 2, "latent_width": 8, "device": "cpu"}
    estimator = MetaVIBClassifier(
        backbone=backbone,
        weights="none",
        image_size=32,
        steps=2,
        samples_per_domain=4,
        random_state=0,
        **small,
    )
    estimator.fit(images, labels, domains=domains)
    expected = estimator.predict_proba(images)
    assert np.array_equal(pickle.loads(pickle.dumps(estimator)).predict_proba(images), expected)  # noqa: S301
    assert estimator.experiment_["image_size"] == 32
