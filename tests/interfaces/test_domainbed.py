"""The adapter as DomainBed's harness uses it: batches of each domain, predictions at any time, checkpoints."""

from __future__ import annotations

import copy
import io
import json
import math
import pickle
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torchvision
from metavib.domainbed import Given, MetaVIB, settings_of
from places import ROOT
from torch import Tensor, nn

from metavib.algorithms.metavib import Bottlenecked
from metavib.core.errors import UserError
from metavib.nn.backbones import BACKBONES
from metavib.nn.functional.predictive import class_means
from metavib.nn.mlp import MLP
from metavib.training.optimizer import NonFiniteError

# What the harness hands over for small images, and for an algorithm that its registry does not know.
HPARAMS = {
    "lr": 1e-3,
    "weight_decay": 0.0,
    "batch_size": 8,
    "class_balanced": False,
    "data_augmentation": True,
}
SMALL = {"metavib_latent_width": 16, "metavib_latent_draws": 3, "metavib_classifier_draws": 3}

Batches = list[tuple[Tensor, Tensor]]


def minibatches(step: int, domains: int = 3, count: int = 24) -> Batches:
    """A batch of each domain: the class is the bright third of the image, the domain how bright the rest is."""
    found = []
    for domain in range(domains):
        generator = torch.Generator().manual_seed(100 * step + domain)
        labels = torch.randint(0, 3, (count,), generator=generator)
        images = 0.15 * domain + 0.3 * torch.rand(count, 1, 9, 9, generator=generator)
        for image, label in zip(images, labels, strict=True):
            image[:, :, 3 * label : 3 * label + 3] += 0.4
        found.append((images, labels))
    return found


@pytest.mark.parametrize("name", ["timm:test_resnet", "small_networks:plain"])
def test_a_network_by_its_name_takes_images_of_the_datasets_size(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("timm")
    monkeypatch.setattr(sys, "path", [str(ROOT / "tests"), *sys.path])
    torch.manual_seed(0)
    algorithm = MetaVIB((3, 32, 32), 3, 2, HPARAMS | SMALL | {"metavib_backbone": name})
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 1, 2, 0])
    batches = [(torch.rand(4, 3, 32, 32, generator=generator), labels) for _ in range(2)]
    assert algorithm.update(batches)["loss"] > 0
    assert algorithm.predict(batches[0][0]).shape == (4, 3)


def featurizer() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(81, 32), nn.ReLU())


@pytest.fixture
def make() -> Callable[..., MetaVIB]:
    def made(seed: int = 0, network: nn.Module | None = None, **hparams: Any) -> MetaVIB:
        torch.manual_seed(seed)
        return MetaVIB((1, 9, 9), 3, 3, HPARAMS | SMALL | hparams, network or featurizer())

    return made


def accuracy(algorithm: Any, batches: Batches) -> float:
    """As the harness measures: in evaluation mode, by the largest logit."""
    algorithm.eval()
    with torch.no_grad():
        hits = [(algorithm.predict(x).argmax(1) == y).float().mean().item() for x, y in batches]
    algorithm.train()
    return sum(hits) / len(hits)


def trained(algorithm: MetaVIB, steps: int = 40) -> MetaVIB:
    for step in range(steps):
        algorithm.update(minibatches(step), None)
    return algorithm


@pytest.mark.parametrize("method", ["metavib", "vib", "baseline"])
def test_it_learns_in_the_harness_loop_and_on_a_domain_that_it_has_not_seen(
    make: Callable[..., MetaVIB], method: str
) -> None:
    algorithm = make(metavib_algorithm=method).to("cpu")
    unseen = [minibatches(1000, domains=4, count=100)[-1]]
    first = algorithm.update(minibatches(0), None)
    terms = {"classification"} | ({"bottleneck"} if method != "baseline" else set())
    assert first.keys() == {"loss"} | terms
    assert all(type(value) is float for value in first.values())
    assert first["loss"] == pytest.approx(sum(first[name] for name in terms), rel=1e-5)
    last = {}
    for step in range(1, 60):
        last = algorithm.update(minibatches(step))
    assert last["classification"] < 0.3 * first["classification"]
    assert accuracy(algorithm, unseen) > 0.9  # chance is 0.33


def test_logits_are_log_probabilities_of_each_sample_alone(make: Callable[..., MetaVIB]) -> None:
    algorithm = trained(make(), 3).eval()
    images = minibatches(9)[0][0]
    logits = algorithm.predict(images)
    assert logits.shape == (24, 3)
    assert torch.allclose(logits.exp().sum(dim=1), torch.ones(24))
    assert torch.allclose(algorithm.predict(images[5:7]), logits[5:7], atol=1e-5)
    assert torch.equal(algorithm(images), logits)


def test_it_predicts_before_the_first_update(make: Callable[..., MetaVIB]) -> None:
    logits = make().predict(minibatches(0)[0][0])
    assert logits.isfinite().all()
    assert logits.shape == (24, 3)


def test_a_class_that_no_batch_had_is_not_answered_with(make: Callable[..., MetaVIB]) -> None:
    algorithm = make()
    two = [(x[y < 2][:8], y[y < 2][:8]) for x, y in minibatches(0, count=40)]
    algorithm.update(two)
    logits = algorithm.predict(minibatches(1)[0][0])
    assert logits[:, 2].isneginf().all()
    assert logits[:, :2].isfinite().all()
    algorithm.update(minibatches(1))
    assert algorithm.predict(minibatches(1)[0][0]).isfinite().all()


def test_class_means_move_with_the_batches_that_have_the_class(make: Callable[..., MetaVIB]) -> None:
    algorithm = make(metavib_decay=0.5)
    features = torch.tensor([[1.0], [3.0], [5.0]]).expand(3, 32)

    def means_after(features: Tensor, labels: list[int]) -> list[float]:
        algorithm._remember(features, torch.tensor(labels))
        algorithm.predict(minibatches(0)[0][0])  # which takes the classifier from the means
        means: list[float] = algorithm.algorithm.class_features[:, 0].tolist()
        return means

    assert means_after(features, [0, 0, 1]) == [2.0, 5.0, 0.0]
    # (0.5 (1 + 3) + 8) / (0.5 2 + 1): the older samples count for half; class 1 had none and stays.
    assert means_after(torch.full((1, 32), 8.0), [0]) == [5.0, 5.0, 0.0]
    for _ in range(300):  # class 1 does not fade to nothing
        algorithm._remember(torch.full((1, 32), 8.0), torch.tensor([0]))
    assert means_after(torch.full((1, 32), 8.0), [0]) == [8.0, 5.0, 0.0]
    kept = algorithm.algorithm.infer_classifier(algorithm.algorithm.class_features)
    assert torch.equal(algorithm.algorithm.classifier_mean, kept.mean)


def test_with_no_memory_the_means_are_those_of_the_last_update(make: Callable[..., MetaVIB]) -> None:
    algorithm = trained(make(metavib_decay=0.0, metavib_feature_size=0.0), 2)
    before, batches = copy.deepcopy(algorithm), minibatches(2)
    algorithm.update(batches)
    images, labels = (torch.cat(values) for values in zip(*batches, strict=True))
    algorithm.predict(images)
    with torch.no_grad():
        features = before.algorithm.features(images)
    for label in range(3):
        expected = features[labels == label].mean(dim=0)
        assert torch.allclose(algorithm.algorithm.class_features[label], expected, atol=1e-5)


def test_a_checkpoint_comes_back_with_its_answers(make: Callable[..., MetaVIB]) -> None:
    algorithm = trained(make(), 5)
    buffer = io.BytesIO()
    torch.save({"model_dict": algorithm.state_dict()}, buffer)
    buffer.seek(0)
    other = make(seed=7)
    images = minibatches(9)[0][0]
    assert not torch.allclose(other.predict(images), algorithm.predict(images))
    other.load_state_dict(torch.load(buffer, weights_only=True)["model_dict"])
    other.to("cpu")
    assert torch.equal(other.predict(images), algorithm.predict(images))
    assert int(other.updates) == 5


def test_draws_are_keyed_and_leave_torchs_generator_alone(make: Callable[..., MetaVIB]) -> None:
    runs = []
    for noise in (1, 2):
        algorithm = make(seed=3)
        torch.manual_seed(noise)
        before = torch.get_rng_state()
        losses = [algorithm.update(minibatches(0))["loss"] for _ in range(3)]
        answer = algorithm.predict(minibatches(1)[0][0])
        assert torch.equal(torch.get_rng_state(), before)
        runs.append((losses, answer))
    assert runs[0][0] == runs[1][0]
    assert torch.equal(runs[0][1], runs[1][1])
    # Another seed, the same weights: other draws.
    other = make(seed=3)
    other.load_state_dict(other.state_dict() | {"seed": torch.tensor(4)})
    assert other.update(minibatches(0))["loss"] != runs[0][0][0]


def test_every_domain_is_meta_test_at_times(make: Callable[..., MetaVIB]) -> None:
    algorithm = make(metavib_roles="one")
    batches = [(torch.full((2, 1, 9, 9), float(d)), torch.tensor([d, d])) for d in range(3)]
    chosen = set()
    for number in range(20):
        algorithm.load_state_dict(algorithm.state_dict() | {"updates": torch.tensor(number)})
        images, labels = algorithm._concatenated(batches)
        assert torch.equal(images[:, 0, 0, 0], labels.float())
        assert sorted(labels.tolist()) == [0, 0, 1, 1, 2, 2]
        chosen.add(labels[-1].item())
    assert chosen == {0, 1, 2}
    assert algorithm.update(minibatches(0)).keys() == {"loss", "classification", "bottleneck"}


def test_batches_of_unequal_size_are_cut_to_the_smallest(make: Callable[..., MetaVIB]) -> None:
    batches = minibatches(0)
    batches[1] = tuple(values[:5] for values in batches[1])  # type: ignore[assignment]
    algorithm = make()
    algorithm.update(batches)
    assert algorithm.counts.sum() == 15


def test_weight_decay_rate_and_clipping_are_the_harness_own(make: Callable[..., MetaVIB]) -> None:
    algorithm = make(lr=0.01, weight_decay=0.1, metavib_head_rate=3)
    groups = algorithm.optimizer.param_groups
    assert [group["lr"] for group in groups] == [0.01, 0.03]
    assert {group["weight_decay"] for group in groups} == {0.1}
    assert sum(len(group["params"]) for group in groups) == len(list(algorithm.parameters()))
    algorithm.update(minibatches(0))
    gradients = torch.cat([p.grad.flatten() for p in algorithm.parameters() if p.grad is not None])
    assert gradients.norm() <= 1.0001


def test_numbers_that_are_none_stop_it_before_the_update(make: Callable[..., MetaVIB]) -> None:
    algorithm = trained(make(), 1)
    before = copy.deepcopy(algorithm.state_dict())
    bad = minibatches(1)
    bad[0][0][0] = torch.nan
    with pytest.raises(NonFiniteError, match="broke down at update 1"):
        algorithm.update(bad)
    assert all(torch.equal(values, before[name]) for name, values in algorithm.state_dict().items())


# --- featurizers ------------------------------------------------------------------------------------------


def test_our_backbones_by_name() -> None:
    algorithm = MetaVIB((1, 28, 28), 3, 2, HPARAMS | SMALL | {"metavib_backbone": "digits"})
    assert type(algorithm.algorithm.backbone) is BACKBONES["digits"]
    images, labels = torch.rand(4, 1, 28, 28), torch.tensor([0, 1, 2, 0])
    algorithm.update([(images, labels), (images, labels)])
    assert algorithm.predict(images).shape == (4, 3)


def test_features_that_are_no_images_have_an_mlp() -> None:
    algorithm = MetaVIB((5,), 2, 2, HPARAMS | SMALL)
    assert type(algorithm.algorithm.backbone) is MLP
    batch = torch.randn(6, 5), torch.tensor([0, 1] * 3)
    algorithm.update([batch, batch])
    assert algorithm.predict(batch[0]).shape == (6, 2)


def test_domainbeds_own_featurizer_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Featurizer(nn.Linear):
        def __init__(self, input_shape: tuple[int, ...], hparams: dict[str, Any]) -> None:
            super().__init__(*input_shape, hparams["width"])
            self.n_outputs = hparams["width"]

    networks = ModuleType("domainbed.networks")
    networks.Featurizer = Featurizer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "domainbed", ModuleType("domainbed"))
    monkeypatch.setitem(sys.modules, "domainbed.networks", networks)
    algorithm = MetaVIB((5,), 2, 2, HPARAMS | SMALL | {"width": 7})
    assert type(algorithm.algorithm.backbone) is Given
    assert algorithm.algorithm.backbone.feature_size == 7
    batch = torch.randn(6, 5), torch.tensor([0, 1] * 3)
    algorithm.update([batch, batch])
    assert algorithm.predict(batch[0]).shape == (6, 2)


def test_the_width_of_a_given_network_is_found_and_its_mode_kept() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(81, 11), nn.BatchNorm1d(11))
    assert Given(network, (1, 9, 9)).feature_size == 11
    assert network.training
    assert network[2].num_batches_tracked == 0
    with pytest.raises(UserError, match=r"must give features \[n, d\]"):
        Given(nn.Identity(), (1, 9, 9))


@pytest.mark.parametrize(
    ("shape", "domains", "hparams", "message"),
    [
        ((1, 28, 28), 1, {"metavib_backbone": "digits"}, "two or more training domains"),
        ((3, 28, 28), 2, {"metavib_backbone": "digits"}, r"digits takes images of \(1, 28, 28\)"),
        ((1, 28, 28), 2, {"metavib_backbone": "digit"}, "did you mean 'digits'"),
        ((1, 28, 28), 2, {}, "DomainBed is not installed here"),
        ((5,), 2, {"metavib_bta": 0.1}, "did you mean 'beta'"),
        ((5,), 2, {"metavib_beta": -1}, "beta must be"),
        ((5,), 2, {"metavib_algorithm": "erm"}, "one of metavib, vib, baseline"),
    ],
)
def test_what_cannot_work_is_refused(
    shape: tuple[int, ...], domains: int, hparams: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        MetaVIB(shape, 3, domains, HPARAMS | hparams)


def test_hyperparameters_with_our_prefix_are_settings() -> None:
    own, method = settings_of(HPARAMS | {"metavib_decay": 0.5, "metavib_beta": 0.2, "mldg_beta": 7})
    assert (own.decay, method.beta, method.roles) == (0.5, 0.2, "every")


# --- the start --------------------------------------------------------------------------------------------


class GroupNormed(nn.Module):
    """What DomainBed's digit network ends with: GroupNorm after ReLU, then the mean over all places.

    Its first features are nearly the same for all images.
    """

    n_outputs = 32

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList([nn.Conv2d(1, 16, 3, 1, 1), nn.Conv2d(16, 32, 3, 1, 1)])
        self.norms = nn.ModuleList([nn.GroupNorm(4, 16), nn.GroupNorm(8, 32)])

    def forward(self, images: Tensor) -> Tensor:
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            images = norm(convolution(images).relu())
        return images.mean(dim=(2, 3))


class ResNet(nn.Module):
    """DomainBed's, smaller, from random weights: torchvision's with nothing in place of its last layer."""

    n_outputs = 512

    def __init__(self) -> None:
        super().__init__()
        self.network = torchvision.models.resnet18()
        self.network.fc = nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.network(images.expand(-1, 3, -1, -1))
        return features


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(81, 64), nn.ReLU(), nn.Linear(64, 64))


@pytest.mark.parametrize(
    ("network", "steps", "count"),
    [(GroupNormed, 80, 24), (ResNet, 15, 8), (mlp, 60, 24)],
    ids=["groupnorm", "resnet", "mlp"],
)
def test_by_its_defaults_it_learns_with_networks_of_any_kind(
    network: Callable[[], nn.Module], steps: int, count: int
) -> None:
    torch.manual_seed(0)
    algorithm = MetaVIB((1, 9, 9), 3, 3, HPARAMS, network())
    losses = [algorithm.update(minibatches(step, count=count))["loss"] for step in range(steps)]
    assert losses[0] < 3 * math.log(3)  # no draw shouts
    # Not the mean: batch normalisation of few images lets a single loss shoot up, by the rounding of a processor.
    assert statistics.median(losses[-5:]) < 0.5 * math.log(3)


def test_draws_vary_by_about_one_at_first_and_no_class_is_far_ahead() -> None:
    torch.manual_seed(0)
    algorithm = MetaVIB((1, 9, 9), 3, 3, HPARAMS, featurizer())
    own, batches = algorithm.algorithm, minibatches(0)
    images, labels = 100 * torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])
    with torch.no_grad():
        own.begin_with(images)  # whatever the size of the inputs
        features = own.features(images)
        z, psi = own.infer_latent(features), own.infer_classifier(class_means(features, labels, 3).features)
    logits = z.mean @ psi.mean.T
    assert 0.1 < (logits - logits.mean(dim=1, keepdim=True)).std() < 10
    drawn = (z.mean.square() @ psi.log_variance.exp().T + z.log_variance.exp() @ psi.mean.square().T).sqrt()
    assert 0.3 < drawn.mean() < 3


def test_the_inference_networks_begin_alike_and_learn_at_the_papers_rate(
    make: Callable[..., MetaVIB],
) -> None:
    algorithm = make(lr=0.01)
    own = algorithm.algorithm
    for first, second in zip(own.infer_classifier.parameters(), own.infer_latent.parameters(), strict=True):
        assert torch.equal(first, second)
        assert first is not second
    assert [group["lr"] for group in algorithm.optimizer.param_groups] == [0.01, 0.0001]
    apart = make(metavib_alike=False).algorithm
    assert not torch.equal(apart.infer_classifier.output.weight, apart.infer_latent.output.weight)


@pytest.mark.parametrize("width", [16, 256, 1024])
def test_the_start_follows_from_the_latent_width(width: int) -> None:
    _, method = settings_of({"metavib_latent_width": width})
    assert method.feature_size == pytest.approx(width**-0.25)
    assert math.exp(method.initial_log_variance) == pytest.approx(0.5 / math.sqrt(width))
    _, method = settings_of(
        {"metavib_latent_width": width, "metavib_feature_size": 1, "metavib_algorithm": "baseline"}
    )
    assert method.feature_size == 1


def test_the_weight_of_the_bottleneck_rises_from_nothing_and_again_from_where_a_checkpoint_is(
    make: Callable[..., MetaVIB],
) -> None:
    algorithm = make(metavib_ramp=4, metavib_beta=0.02)
    seen = []
    one, labels = torch.ones(1), torch.zeros(1, dtype=torch.int64)
    for step in range(6):
        bottleneck = algorithm.update(minibatches(step))["bottleneck"]
        assert (bottleneck == 0) == (step == 0)
        seen.append(weight_of(algorithm).weighted(one, labels).item())
    assert seen == pytest.approx([0, 0.005, 0.01, 0.015, 0.02, 0.02])
    other = make(metavib_ramp=4, metavib_beta=0.02)
    other.load_state_dict(algorithm.state_dict())
    other.update(minibatches(6))
    assert weight_of(other).weighted(one, labels).item() == pytest.approx(0.02)
    at_once = make(metavib_ramp=0)
    assert at_once.update(minibatches(0))["bottleneck"] > 0


def weight_of(adapter: MetaVIB) -> Bottlenecked:
    assert isinstance(adapter.algorithm, Bottlenecked)
    return adapter.algorithm


# --- the harness ------------------------------------------------------------------------------------------


def test_all_that_the_harness_does_with_an_algorithm(tmp_path: Path) -> None:
    """The calls of DomainBed's domainbed/scripts/train.py and of its misc.accuracy, in their order."""
    hparams = {
        "data_augmentation": True, "resnet18": False, "resnet50_augmix": True, "dinov2": False, "vit": False,
        "vit_attn_tune": False, "freeze_bn": False, "lars": False, "linear_steps": 500, "resnet_dropout": 0.0,
        "vit_dropout": 0.0, "class_balanced": False, "nonlinear_classifier": False, "lr": 0.001,
        "weight_decay": 0.0, "batch_size": 24,
    }  # fmt: skip
    torch.manual_seed(0)
    algorithm = MetaVIB((5,), 3, 2, hparams)
    assert algorithm.to("cpu") is algorithm
    batches = [(torch.randn(24, 5), torch.randint(3, (24,))) for _ in range(2)]
    for _ in range(3):
        values = algorithm.update(batches, None)
        assert all(isinstance(value, float) for value in values.values())
        assert math.isfinite(json.loads(json.dumps(values))["loss"])
        algorithm.eval()
        with torch.no_grad():
            answer = algorithm.predict(batches[0][0])
        assert answer.shape == (24, 3)
        assert 0 <= answer.argmax(1).eq(batches[0][1]).float().mean() <= 1
        algorithm.train()
    kept = {"model_hparams": hparams, "model_dict": algorithm.state_dict()}
    torch.save(kept, tmp_path / "model.pkl")
    found = torch.load(tmp_path / "model.pkl", weights_only=True)
    again = MetaVIB((5,), 3, 2, found["model_hparams"])
    again.load_state_dict(found["model_dict"])
    assert torch.equal(again.eval().predict(batches[1][0]), algorithm.eval().predict(batches[1][0]))
    # What it takes up again is what it would have done.
    assert again.updates_so_far == 3
    whole = pickle.loads(pickle.dumps(algorithm))  # noqa: S301
    assert torch.equal(whole.predict(batches[1][0]), algorithm.predict(batches[1][0]))


def batches_of_patterns(step: int, classes: int, count: int = 16) -> Batches:
    """A batch of each of three domains: a pattern for each class, and noise."""
    patterns = torch.randn(classes, 32, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(step + 1)
    labels = torch.randint(classes, (3, count), generator=generator)
    inputs = patterns[labels] + 0.3 * torch.randn(3, count, 32, generator=generator)
    return list(zip(inputs, labels, strict=True))


def test_more_classes_than_a_batch_has_samples_are_learnt() -> None:
    torch.manual_seed(0)
    algorithm = MetaVIB((32,), 65, 3, HPARAMS | SMALL | {"lr": 3e-3})
    for step in range(150):
        algorithm.update(batches_of_patterns(step, 65))
    (inputs, labels), *_ = batches_of_patterns(1000, 65, 300)
    assert (algorithm.predict(inputs).argmax(dim=1) == labels).float().mean() > 0.3  # chance is 0.015


def test_domains_that_share_no_class_leave_a_loss_that_is_finite() -> None:
    torch.manual_seed(0)
    algorithm = MetaVIB((32,), 345, 3, HPARAMS | SMALL)
    for step in range(3):
        apart = [
            (x, 8 * domain + torch.arange(8)) for domain, (x, _) in enumerate(batches_of_patterns(step, 9, 8))
        ]
        assert all(torch.isfinite(torch.tensor(value)) for value in algorithm.update(apart).values())
    assert algorithm.predict(apart[0][0])[:, :24].isfinite().all()
