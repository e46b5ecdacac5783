"""The adapter as DomainBed's harness uses it: batches of each domain, predictions at any time, checkpoints."""

from __future__ import annotations

import copy
import io
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from metavib.domainbed import Given, MetaVIB, settings_of
from metavib.errors import UserError
from metavib.networks.backbones import BACKBONES
from metavib.networks.mlp import MLP
from metavib.optimization import NonFiniteError

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
    algorithm._remember(features, torch.tensor([0, 0, 1]))
    assert algorithm.algorithm.class_features[:, 0].tolist() == [2.0, 5.0, 0.0]
    algorithm._remember(torch.full((1, 32), 8.0), torch.tensor([0]))
    # (0.5 (1 + 3) + 8) / (0.5 2 + 1): the older samples count for half; class 1 had none and stays.
    assert algorithm.algorithm.class_features[:, 0].tolist() == [5.0, 5.0, 0.0]
    for _ in range(300):  # class 1 does not fade to nothing
        algorithm._remember(torch.full((1, 32), 8.0), torch.tensor([0]))
    assert algorithm.algorithm.class_features[:2, 0].tolist() == [8.0, 5.0]
    kept = algorithm.algorithm.infer_classifier(algorithm.algorithm.class_features)
    assert torch.equal(algorithm.algorithm.classifier_mean, kept.mean)


def test_with_no_memory_the_means_are_those_of_the_last_update(make: Callable[..., MetaVIB]) -> None:
    algorithm = trained(make(metavib_decay=0.0, metavib_feature_size=0.0), 2)
    before, batches = copy.deepcopy(algorithm), minibatches(2)
    algorithm.update(batches)
    images, labels = (torch.cat(values) for values in zip(*batches, strict=True))
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
    other.seed.fill_(4)
    assert other.update(minibatches(0))["loss"] != runs[0][0][0]


def test_every_domain_is_meta_test_at_times(make: Callable[..., MetaVIB]) -> None:
    algorithm = make(metavib_roles="one")
    chosen = set()
    for _ in range(20):
        episode = algorithm._episode(minibatches(0))
        chosen.add(episode.meta_test.domains.item())
        assert sorted([*episode.meta_train.domains.tolist(), episode.meta_test.domains.item()]) == [0, 1, 2]
        algorithm.updates += 1
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
        ((5,), 2, {"metavib_beta": -1}, "beta = -1 will not do"),
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
