from __future__ import annotations

import copy

import pytest
import torch
from small_episodes import (
    IMAGES,
    built,
    episode_of,
    erm_with_the_weights_of,
    gradients,
    numeric_gradient,
)
from torch import Tensor, nn

from metavib.algorithms.reptile import Reptile
from metavib.data.episodes import Episode


def total(terms: dict[str, Tensor]) -> Tensor:
    return torch.stack(list(terms.values())).sum()


def loss_on(model: Reptile, episode: Episode, domain: int) -> Tensor:
    samples = episode.all_domains()
    return nn.functional.cross_entropy(
        model.classifier(model.backbone(samples.images[domain])), samples.labels[domain]
    )


def test_with_one_inner_step_it_is_the_gradient_of_erm_on_that_batch() -> None:
    reptile, episode = built(Reptile, inner_steps=1, inner_rate=0.3), episode_of()
    found = gradients(reptile, total(reptile.losses(episode, {})))
    expected = gradients(reptile, loss_on(reptile, episode, 0))
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("inner_steps", [0, 6])
def test_with_an_inner_rate_of_zero_it_is_erm(inner_steps: int) -> None:
    reptile, episode = built(Reptile, inner_rate=0.0, inner_steps=inner_steps), episode_of()
    erm = erm_with_the_weights_of(reptile)
    terms, expected = reptile.losses(episode, {}), total(erm.losses(episode, {}))
    torch.testing.assert_close(terms["classification"], expected)
    of_erm = gradients(erm, expected)
    for name, gradient in gradients(reptile, total(terms)).items():
        torch.testing.assert_close(gradient, of_erm[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("inner_steps", "domains"), [(0, [0, 1, 2]), (2, [0, 1]), (5, [0, 1, 2, 0, 1])])
def test_theta_moves_toward_where_sgd_on_one_domain_after_the_other_leads(
    inner_steps: int, domains: list[int]
) -> None:
    rate = 0.5
    reptile, episode = built(Reptile, inner_rate=rate, inner_steps=inner_steps), episode_of()
    walker = copy.deepcopy(reptile)
    sgd = torch.optim.SGD(walker.parameters(), lr=rate)
    losses = []
    for domain in domains:
        sgd.zero_grad()
        losses.append(loss_on(walker, episode, domain))
        losses[-1].backward()
        sgd.step()
    terms = reptile.losses(episode, {})
    after, size = dict(walker.named_parameters()), 0.0
    for name, gradient in gradients(reptile, total(terms)).items():
        before = dict(reptile.named_parameters())[name]
        direction = (before - after[name]) / (rate * len(domains))
        torch.testing.assert_close(gradient, direction, rtol=1e-9, atol=1e-11)
        size += 0.5 * direction.square().sum().item()
    torch.testing.assert_close(terms["classification"], torch.stack(losses).mean())
    assert terms["movement"].item() == pytest.approx(size, rel=1e-9)


def test_the_direction_is_the_mean_of_the_gradients_along_the_way_by_finite_differences() -> None:
    rate = 0.4
    reptile, episode = built(Reptile, inner_rate=rate), episode_of()
    found = gradients(reptile, total(reptile.losses(episode, {})))
    walker = copy.deepcopy(reptile)
    met: dict[str, list[Tensor]] = {name: [] for name in found}
    for domain in range(3):
        numeric = {
            name: numeric_gradient(lambda domain=domain: loss_on(walker, episode, domain), own.data)
            for name, own in walker.named_parameters()
        }
        with torch.no_grad():
            for name, own in walker.named_parameters():
                own.sub_(numeric[name], alpha=rate)
                met[name].append(numeric[name])
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, torch.stack(met[name]).mean(dim=0), rtol=1e-6, atol=1e-8)
    assert not torch.allclose(met["classifier.weight"][0], met["classifier.weight"][2], rtol=1e-2)


def test_only_the_movement_moves_and_nothing_is_differentiated_twice() -> None:
    reptile, episode = built(Reptile), episode_of()
    terms = reptile.losses(episode, {})
    assert list(terms) == ["classification", "movement"]
    assert not terms["classification"].requires_grad
    assert not reptile.backbone.twice_differentiable  # so a GPU may use the kernels
    assert reptile.noise_shapes(2 * IMAGES, IMAGES) == {}
