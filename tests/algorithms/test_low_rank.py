from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from small_episodes import (
    CLASSES,
    DOMAINS,
    Smooth,
    built,
    episode_of,
    gradients,
    moved_by,
    numeric_gradient,
)
from torch import Tensor, nn

from benchmarks.workloads import digit_runs, trainee
from metavib.algorithms.erm import ERM
from metavib.algorithms.low_rank import LowRank
from metavib.data.episodes import Episode, Samples
from metavib.data.sources.catalog import open_dataset
from metavib.nn.networks import build_backbone
from metavib.training.step import Program

FULL = DOMAINS + 1
RATE = 0.5


def low_rank(**settings: Any) -> LowRank:
    """Domains that have become different from one another."""
    algorithm = built(LowRank, **settings)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for own in algorithm.tensors.parameters():
            own.add_(torch.randn(own.shape, dtype=torch.float64, generator=generator), alpha=0.3)
    return algorithm


def networks(count: int) -> list[ERM]:
    """Networks that have nothing to do with one another."""
    several = []
    for seed in range(count):
        torch.manual_seed(seed)
        several.append(ERM(Smooth(), CLASSES, ERM.Config()).double())
    return several


def set_to(algorithm: LowRank, separate: list[ERM]) -> None:
    """Give each domain the weights of its network, and the last network to no domain."""
    *of_domains, agnostic = (dict(network.named_parameters()) for network in separate)
    with torch.no_grad():
        for key, tensor in algorithm.tensors.items():
            name = key.replace("-", ".")
            own = [(weights[name] - agnostic[name]) / RATE for weights in of_domains]
            tensor.core.copy_(torch.stack([*own, agnostic[name]]).flatten(1))


def test_at_full_rank_it_is_a_separate_network_for_each_domain() -> None:
    algorithm, separate = built(LowRank, domain_rank=FULL, domain_rate=RATE), networks(FULL)
    episode = episode_of()
    set_to(algorithm, separate)
    samples = episode.all_domains()
    expected = [
        nn.functional.cross_entropy(network.classifier(network.backbone(images)), labels)
        for network, images, labels in zip(
            [separate[domain] for domain in samples.domains], samples.images, samples.labels, strict=True
        )
    ]
    loss = algorithm.losses(episode, {})["classification"]
    torch.testing.assert_close(loss, torch.stack(expected).mean(), rtol=1e-12, atol=0)
    # What a domain has for itself moves as its network would.
    found = gradients(algorithm, loss)
    for place, domain in enumerate(samples.domains):
        for name, gradient in gradients(separate[domain], expected[place]).items():
            own = found[f"tensors.{name.replace('.', '-')}.core"][domain].view_as(gradient)
            torch.testing.assert_close(own, RATE * gradient / DOMAINS, rtol=1e-9, atol=1e-14)


def test_a_domain_that_was_never_seen_gets_the_agnostic_network() -> None:
    algorithm, separate = built(LowRank, domain_rank=FULL, domain_rate=RATE), networks(FULL)
    set_to(algorithm, separate)
    images = episode_of().meta_test.flat_images()
    answers = [own.predictive(own.embed(images), None).log_probabilities for own in (algorithm, separate[-1])]
    torch.testing.assert_close(*answers)


@pytest.mark.parametrize("settings", [{"domain_rank": 1}, {"domain_rank": FULL, "domain_rate": 0.0}])
def test_where_domains_have_nothing_for_themselves_loss_gradient_and_prediction_are_erms(
    settings: dict[str, Any],
) -> None:
    torch.manual_seed(0)
    erm = ERM(Smooth(), CLASSES, ERM.Config()).double()
    algorithm, episode = built(LowRank, **settings), episode_of()
    loss, expected = (own.losses(episode, {})["classification"] for own in (algorithm, erm))
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    found = gradients(algorithm, loss)
    for name, gradient in gradients(erm, expected).items():
        own = found[f"tensors.{name.replace('.', '-')}.core"]
        torch.testing.assert_close(own[-1].view_as(gradient), gradient, rtol=1e-9, atol=1e-14)
        assert (own[:-1] == 0).all()
    images = episode.meta_test.flat_images()
    answers = [own.predictive(own.embed(images), None).log_probabilities for own in (algorithm, erm)]
    torch.testing.assert_close(*answers)


def test_at_domain_rate_zero_training_is_that_of_erm() -> None:
    steps, values = 4, {"clip_norm": 0.1, "warmup": 0, "steps": 4, "images_per_domain": 8}
    dataset = open_dataset("rotated-digits", data_root=None, protocol=None, seed=0)

    def trained(algorithm: str, **method: Any) -> Program:
        experiment = {"dataset": "rotated-digits", "target": "0", "algorithm": algorithm, "seed": 0}
        program = Program([trainee(experiment, values | method, dataset, torch.device("cpu"))])
        for _ in range(steps):
            program.step()
        return program

    erm, own = trained("erm"), trained("low_rank", domain_rate=0.0, domain_rank=99)
    generated = own.algorithms[0]._agnostic("")
    for name, parameter in erm.parameters.items():
        # Sums in another order; a step of Adam is a hundred times as far.
        torch.testing.assert_close(generated[name], parameter[0], rtol=0, atol=2e-5)


@pytest.mark.parametrize("settings", [{}, {"domain_rank": 3, "channel_rank": 0.5}])
def test_the_gradients_equal_finite_differences(settings: dict[str, Any]) -> None:
    algorithm, episode = low_rank(**settings), episode_of()

    def value() -> Tensor:
        return algorithm.losses(episode, {})["classification"]

    found = gradients(algorithm, value())
    assert moved_by(algorithm, value()) == set(dict(algorithm.named_parameters()))
    for name, parameter in algorithm.named_parameters():
        expected = numeric_gradient(value, parameter.data)
        torch.testing.assert_close(found[name], expected, rtol=1e-5, atol=1e-8)


def test_a_domain_that_an_episode_lacks_keeps_what_it_has_for_itself() -> None:
    algorithm = low_rank(domain_rank=FULL)
    found = gradients(algorithm, algorithm.losses(episode_of((2, 0)), {})["classification"])
    for gradient in found.values():
        assert (gradient[1] == 0).all()
        assert all(gradient[own].abs().max() > 0 for own in (0, 2, 3))


def test_the_network_has_no_weights_but_those_that_are_generated() -> None:
    algorithm = built(LowRank)
    assert {name.partition(".")[0] for name, _ in algorithm.named_parameters()} == {"tensors"}
    assert len(algorithm.tensors) == len(list(ERM(Smooth(), CLASSES, ERM.Config()).parameters()))


def test_a_higher_rank_than_full_is_full() -> None:
    settings = LowRank.Config(domain_rank=99)
    torch.manual_seed(0)
    algorithm = LowRank(Smooth(), CLASSES, settings, domains=DOMAINS)
    assert all(len(tensor.core) == FULL for tensor in algorithm.tensors.values())
    assert not any("of_domains" in name for name, _ in algorithm.named_parameters())


@pytest.mark.parametrize("name", ["digits", "squeezenet", "resnet18"])
def test_real_networks_are_factored_in_every_layer_and_begin_as_they_were(name: str) -> None:
    torch.manual_seed(0)
    backbone = build_backbone(name)
    if name == "resnet18":
        backbone.freeze_normalisation()  # as with pre-trained weights
    images = torch.rand(2, 2, backbone.channels, 28, 28) if name == "digits" else torch.rand(2, 2, 3, 64, 64)
    with torch.no_grad():
        before = copy.deepcopy(backbone)(images[0])
    count = len(list(backbone.parameters()))
    algorithm = LowRank(backbone, CLASSES, LowRank.Config(), domains=DOMAINS)
    assert len(algorithm.tensors) == count + 2
    with torch.no_grad():
        torch.testing.assert_close(algorithm.embed(images[0]), before, rtol=1e-4, atol=1e-5)
    episode = Episode(
        *(Samples(images[i : i + 1], torch.tensor([[0, 2]]), torch.tensor([i])) for i in range(2))
    )
    moved = moved_by(algorithm, algorithm.losses(episode, {})["classification"])
    assert {name for name, _ in algorithm.named_parameters() if name.endswith(".core")} <= moved


def test_the_factors_of_the_backbone_learn_at_its_rate() -> None:
    program = Program(digit_runs(1, "low_rank", 2, torch.device("cpu")))
    assert program.optimizer.backbone == {name for name in program.parameters if "classifier" not in name}
    assert len(program.optimizer.backbone) == 2 * 6  # a core and a factor of domains for each parameter
