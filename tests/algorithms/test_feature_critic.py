"""Feature-Critic's own mathematics: whose objective is whose, its limiting cases, and the critic's gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_episodes import built, episode_of, erm_with_the_weights_of, gradients, moved_by, numeric_gradient
from torch import Tensor, nn

from metavib.algorithms.feature_critic import FeatureCritic
from metavib.data.episodes import Episode

SETTINGS: dict[str, Any] = {"inner_rate": 0.5, "auxiliary_weight": 2.0, "critic_width": 6, "warm_up": 0.0}


def part(algorithm: FeatureCritic, *prefixes: str) -> set[str]:
    return {name for name, _ in algorithm.named_parameters() if name.startswith(prefixes)}


def smooth(critic: FeatureCritic) -> FeatureCritic:
    """With derivatives everywhere, for finite differences."""
    critic.critic[1] = nn.Tanh()
    return critic


def meta_test_loss_after_a_step(algorithm: FeatureCritic, episode: Episode, *, with_critic: bool) -> float:
    """By torch's own optimiser: a step of the backbone on the meta-train domains, then the meta-test loss."""
    erm = erm_with_the_weights_of(algorithm)
    descent = torch.optim.SGD(erm.backbone.parameters(), lr=float(algorithm.inner_rate))
    features = erm.backbone(episode.meta_train.flat_images())
    loss = nn.functional.cross_entropy(erm.classifier(features), episode.meta_train.flat_labels())
    if with_critic:
        loss = loss + algorithm.auxiliary_weight * nn.functional.softplus(algorithm.critic(features)).mean()
    loss.backward()
    descent.step()
    logits = erm.classifier(erm.backbone(episode.meta_test.flat_images()))
    return nn.functional.cross_entropy(logits, episode.meta_test.flat_labels()).item()


def test_the_meta_objective_is_the_tanh_of_what_the_critic_adds_to_the_held_out_loss() -> None:
    algorithm, episode = built(FeatureCritic, **SETTINGS), episode_of()
    terms = algorithm.losses(episode, {})
    new, old = (meta_test_loss_after_a_step(algorithm, episode, with_critic=given) for given in (True, False))
    assert new != old
    assert terms["meta_test"].item() == pytest.approx(torch.tanh(torch.tensor(new - old)).item(), abs=1e-9)


def test_the_other_terms_are_the_task_loss_and_the_critics_loss_on_meta_train() -> None:
    algorithm, episode = built(FeatureCritic, **SETTINGS), episode_of()
    terms = algorithm.losses(episode, {})
    torch.testing.assert_close(
        terms["classification"], algorithm.cross_entropy(algorithm.network(), episode.meta_train)
    )
    scores = algorithm.critic(algorithm.embed(episode.meta_train.flat_images()))
    torch.testing.assert_close(terms["auxiliary"], 2.0 * torch.log1p(scores.exp()).mean())


def test_every_term_moves_only_the_parameters_that_it_is_for() -> None:
    algorithm, episode = built(FeatureCritic, **SETTINGS), episode_of()
    terms = algorithm.losses(episode, {})
    assert moved_by(algorithm, terms["classification"]) == part(algorithm, "backbone", "classifier")
    assert moved_by(algorithm, terms["auxiliary"]) == part(algorithm, "backbone")
    assert moved_by(algorithm, terms["meta_test"]) == part(algorithm, "critic")


@pytest.mark.parametrize(("progress", "moves"), [(0.0, False), (0.39, False), (0.4, True), (0.99, True)])
def test_what_the_critic_says_moves_the_backbone_once_the_warm_up_is_over(
    progress: float, moves: bool
) -> None:
    algorithm, episode = built(FeatureCritic, **(SETTINGS | {"warm_up": 0.4})), episode_of()
    algorithm.progress.fill_(progress)
    terms, at_once = algorithm.losses(episode, {}), built(FeatureCritic, **SETTINGS).losses(episode, {})
    torch.testing.assert_close(terms, at_once)
    assert moved_by(algorithm, terms["auxiliary"]) == (part(algorithm, "backbone") if moves else set())
    assert moved_by(algorithm, terms["meta_test"]) == part(algorithm, "critic")  # which learns from the start


def test_the_gradients_agree_with_finite_differences() -> None:
    algorithm, episode = smooth(built(FeatureCritic, **SETTINGS)), episode_of()
    terms = algorithm.losses(episode, {})
    found = gradients(algorithm, torch.stack(list(terms.values())).sum())

    def for_network() -> Tensor:
        terms = algorithm.losses(episode, {})
        return terms["classification"] + terms["auxiliary"]

    for name, parameter in algorithm.named_parameters():
        own = (lambda: algorithm.losses(episode, {})["meta_test"]) if "critic" in name else for_network
        expected = numeric_gradient(own, parameter)
        torch.testing.assert_close(found[name], expected, rtol=1e-5, atol=1e-8)


def test_a_step_of_the_critic_lowers_the_held_out_loss_after_the_inner_step() -> None:
    algorithm, episode = smooth(built(FeatureCritic, **SETTINGS)), episode_of()
    before = meta_test_loss_after_a_step(algorithm, episode, with_critic=True)
    without = meta_test_loss_after_a_step(algorithm, episode, with_critic=False)
    slopes = gradients(algorithm, algorithm.losses(episode, {})["meta_test"])
    with torch.no_grad():
        for name, parameter in algorithm.named_parameters():
            parameter.sub_(0.5 * slopes[name])
    assert meta_test_loss_after_a_step(algorithm, episode, with_critic=True) < before
    assert meta_test_loss_after_a_step(algorithm, episode, with_critic=False) == without  # nothing else moved


@pytest.mark.parametrize("settings", [{"auxiliary_weight": 0.0}, {"inner_rate": 0.0}], ids=str)
def test_a_critic_without_weight_or_without_an_inner_step_learns_nothing(settings: dict[str, float]) -> None:
    algorithm, episode = built(FeatureCritic, **(SETTINGS | settings)), episode_of()
    terms = algorithm.losses(episode, {})
    assert terms["meta_test"] == 0
    assert moved_by(algorithm, terms["meta_test"]) == set()


def test_with_beta_zero_it_is_erm_on_the_meta_train_domains() -> None:
    algorithm, episode = built(FeatureCritic, **(SETTINGS | {"auxiliary_weight": 0.0})), episode_of()
    total = torch.stack(list(algorithm.losses(episode, {}).values())).sum()
    erm = erm_with_the_weights_of(algorithm)
    expected = erm.losses(Episode(episode.meta_train, episode.meta_train), {})["classification"]
    torch.testing.assert_close(total, expected)
    own = gradients(algorithm, total)
    for name, slope in gradients(erm, expected).items():
        torch.testing.assert_close(own[name], slope)
