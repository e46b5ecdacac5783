"""What is measured on source images before the first step, and what it decides."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from small_episodes import CLASSES, Smooth, built, episode_of

from metavib.algorithms.erm import ERM
from metavib.algorithms.metavib import MetaVIB
from metavib.interfaces.cli.parsing import parsers
from metavib.interfaces.cli.training.experiments import experiment_and_place
from metavib.nn.backbone import PIXELS, Backbone
from metavib.runs.one_run import ExecutionContext, open_run, run_experiment
from metavib.training.experiment import experiment_from
from metavib.training.fitting import (
    CHANGE,
    HIGHEST_RATE,
    NOTHING,
    Fit,
    apply,
    backbone_rate,
    first_distributions,
    fit_of,
)
from metavib.training.loop import Stopped, train
from metavib.training.optimizer import Optimizer, Training
from metavib.training.run_directory import RunDirectory


def probed() -> tuple[torch.Tensor, torch.Tensor]:
    episode = episode_of()
    return episode.meta_train.flat_images().float(), episode.meta_train.flat_labels()


class Steep(Backbone):
    """Linear features that answer so many times as strongly to a change of the weights."""

    image_size, channels, feature_size, normalisation = 3, 1, 4, PIXELS

    def __init__(self, times: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.times = torch.nn.Parameter(torch.randn(9, 4) / times), times

    def extract(self, images: torch.Tensor, masks: tuple[torch.Tensor | None, ...]) -> torch.Tensor:
        return images.flatten(1) @ (self.weight * self.times)


def test_a_network_that_answers_twice_as_strongly_learns_half_as_fast() -> None:
    images, labels = probed()
    slow, quick = (backbone_rate(Steep(times), images, labels, CLASSES, 0) for times in (2000.0, 1000.0))
    assert quick == pytest.approx(2 * slow, rel=1e-2)
    assert quick < HIGHEST_RATE


def test_a_step_at_the_measured_rate_changes_linear_features_by_their_spread() -> None:
    images, labels = probed()
    network = Steep(1000.0)
    rate = backbone_rate(network, images, labels, CLASSES, 0)
    features = network(images).detach()
    spread = (features - features.mean(dim=0)).square().mean().sqrt()
    changes = []
    for signs in torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 9):  # all directions of a feature
        changes.append(float((images.flatten(1) @ signs).square().mean().sqrt() * 1000 * rate / spread))
    assert min(changes) < CHANGE < max(changes)  # the gradient's own are among them


def test_a_network_that_does_not_learn_or_tells_nothing_apart_has_no_rate() -> None:
    images, labels = probed()
    fixed = Smooth().requires_grad_(False)
    assert math.isnan(backbone_rate(fixed, images, labels, CLASSES, 0))
    constant = Smooth()
    with torch.no_grad():
        constant.layer.weight.zero_()
    assert math.isnan(backbone_rate(constant, images, labels, CLASSES, 0))


@pytest.mark.parametrize("settings", [{}, {"inference": "identity"}, {"logit_scale": 3.0}])
@pytest.mark.parametrize("times", [0.01, 1.0, 50.0])
def test_logits_and_their_draws_begin_at_size_one_whatever_the_unit_of_the_features(
    settings: dict[str, Any], times: float
) -> None:
    algorithm, episode = built(MetaVIB, latent_width=64, **settings), episode_of()
    labels = episode.meta_train.flat_labels()
    with torch.no_grad():
        features = times * algorithm.backbone(episode.meta_train.flat_images())
        scale, log_variance = first_distributions(algorithm, features, labels)
        apply(Fit(math.nan, scale, log_variance), algorithm)
        present = labels.unique()
        means = torch.stack([features[labels == label].mean(dim=0) for label in present]) / scale
        psi, z = algorithm.infer_classifier(means), algorithm.infer_latent(features / scale)
        learnt = 1.0 if algorithm.log_scale is None else algorithm.log_scale.exp()
        logits = learnt * z.mean @ psi.mean.mT
        assert float((logits - logits.mean(dim=1, keepdim=True)).square().mean().sqrt()) == pytest.approx(
            1, rel=0.1
        )
        variance = math.exp(log_variance)
        sizes = psi.mean.square().sum(dim=1).mean() + z.mean.square().sum(dim=1).mean()
        assert float(learnt**2 * (64 * variance**2 + sizes * variance)) == pytest.approx(1)


def test_the_measured_values_are_applied_and_parameters_stay_as_they_are_until_then() -> None:
    algorithm, episode = built(MetaVIB), episode_of()
    before = {name: own.clone() for name, own in algorithm.state_dict().items()}
    fit = fit_of(algorithm, episode, seed=0)
    assert all(torch.equal(own, before[name]) for name, own in algorithm.state_dict().items())
    assert fit == fit_of(algorithm, episode, seed=0)
    apply(fit, algorithm)
    assert float(algorithm.feature_scale) == pytest.approx(fit.feature_scale)
    width = algorithm.config.latent_width
    assert torch.all(algorithm.infer_latent.output.bias[width:] == fit.log_variance)
    assert "learns at" in fit.in_words()
    assert "features are divided by" in fit.in_words()


def test_centred_features_are_measured_from_their_centre() -> None:
    centred, plain = built(MetaVIB, centred=True), built(MetaVIB)
    episode = episode_of()
    assert fit_of(centred, episode, seed=0) == fit_of(plain, episode, seed=0)  # a centre of zero
    centred.begin(episode)
    assert fit_of(centred, episode, seed=0).feature_scale < fit_of(plain, episode, seed=0).feature_scale


def test_other_methods_have_a_rate_alone() -> None:
    algorithm = built(ERM)
    fit = fit_of(algorithm, episode_of(), seed=0)
    assert fit.backbone_rate > 0
    assert math.isnan(fit.feature_scale)
    apply(fit, algorithm)
    assert NOTHING.in_words() == "measured on the source images: nothing that could be fitted"


def test_the_optimizer_takes_the_rate_as_a_share_of_its_own_and_never_more() -> None:
    settings = [Training(learning_rate=1e-3, backbone_rate=0.3) for _ in range(3)]
    optimizer = Optimizer({"backbone.w": torch.zeros(3, 2)}, {"backbone.w"}, settings)
    optimizer.fit_backbone([2e-4, math.nan, 1.0])
    assert optimizer.backbone_share.tolist() == pytest.approx([0.2, 0.3, 1.0])


def test_a_fitted_run_that_is_stopped_goes_on_bit_for_bit(folder: Path, tmp_path: Path) -> None:
    values = {"dataset": str(folder), "target": "sketch", "seed": 1, "backbone": "digits", "weights": "none"}
    settings = {
        "steps": 4,
        "validations": 1,
        "images_per_domain": 4,
        "repeats": 1,
        "latent_width": 16,
        "fit": True,
    }
    own = experiment_from(values, settings)
    cpu, said = torch.device("cpu"), list[str]()
    unstopped = open_run(own, RunDirectory(tmp_path / "unstopped"), ExecutionContext(cpu)).run
    for progress in train([unstopped], unstopped.directory.checkpoints):
        said += progress.notes
    assert len(said) == 1
    assert said[0].startswith("measured on the source images: the network learns at")
    run_experiment(own, tmp_path / "whole", ExecutionContext(cpu))
    calls = iter(range(1))
    with pytest.raises(Stopped):
        run_experiment(
            own, tmp_path / "stopped", ExecutionContext(cpu, stop=lambda: next(calls, None) is None)
        )
    run_experiment(own, tmp_path / "stopped", ExecutionContext(cpu))
    for name in ("model/model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_run_on_a_folder_that_was_begun_fitted_goes_on_fitted_without_being_told(
    folder: Path, tmp_path: Path
) -> None:
    def chosen(*words: str) -> Any:
        _, commands = parsers(["train"])
        given = [
            str(folder),
            "--target",
            "sketch",
            "--seed",
            "1",
            "--weights",
            "none",
            "--backbone",
            "digits",
        ]
        return experiment_and_place(commands["train"].parse_args([*given, *words]))[0]

    assert chosen().preset == "fast"
    assert not chosen().training.fit
    begun = chosen(
        "--preset", "fitted", "--steps", "2", "--set", "images_per_domain=4", "--set", "latent_width=8"
    )
    assert begun.training.fit
    run_experiment(begun, tmp_path / "run", ExecutionContext(torch.device("cpu")))
    assert chosen("--out", str(tmp_path / "run")).preset == "fitted"
