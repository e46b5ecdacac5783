from __future__ import annotations

from typing import Any

import pytest
import torch
from small_episodes import (
    DOMAINS,
    assert_is_erm,
    built,
    episode_of,
    gradients,
    moved_by,
    network_after_training,
    numeric_gradient,
)
from torch import Tensor, nn

from metavib.algorithms.metareg import MetaReg, task_loss, unrolled, weighted_l1

PENALTIES = {"learned_penalty.weight", "learned_penalty.bias"}
CLASSIFIER = {"classifier.weight", "classifier.bias"}
TASKS = {"tasks.weight", "tasks.bias"}
BACKBONE = {"backbone.layer.weight", "backbone.layer.bias"}


def metareg(**settings: Any) -> Any:
    """With penalties of its own for every weight, some of them negative, learned and applied all along."""
    algorithm = built(MetaReg, **{"phase_one": 0.0, "penalty_rate": 1.0, "inner_rate": 0.1} | settings)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for own in algorithm.learned_penalty.values():
            own.copy_(0.2 * torch.randn(own.shape, dtype=torch.float64, generator=generator))
    return algorithm


def test_the_weighted_norm_by_hand() -> None:
    penalties = {"weight": torch.tensor([[1.0, 0.5]]), "bias": torch.tensor([-2.0])}
    parameters = {"weight": torch.tensor([[-3.0, 4.0]]), "bias": torch.tensor([-0.5])}
    assert weighted_l1(penalties, parameters) == 1.0 * 3 + 0.5 * 4 - 2.0 * 0.5


def test_with_zero_weights_it_is_its_task_loss() -> None:
    algorithm, episode = built(MetaReg, phase_one=0.0), episode_of()
    terms = algorithm.losses(episode, {})
    assert terms["regulariser"] == 0
    assert_is_erm(algorithm, terms, episode)


def test_each_term_moves_only_what_it_is_for() -> None:
    algorithm = metareg()
    terms = algorithm.losses(episode_of(), {})
    assert list(terms) == ["classification", "regulariser", "tasks", "meta_test"]
    assert moved_by(algorithm, terms["classification"]) == BACKBONE | CLASSIFIER
    assert moved_by(algorithm, terms["regulariser"]) == CLASSIFIER
    assert moved_by(algorithm, terms["tasks"]) == TASKS
    assert moved_by(algorithm, terms["meta_test"]) == PENALTIES


def test_the_unrolled_steps_are_those_of_sgd() -> None:
    torch.manual_seed(0)
    features, labels = torch.randn(6, 4).double(), torch.tensor([0, 1, 2, 0, 1, 2])
    layer = nn.Linear(4, 3).double()
    start = {name: own.detach().clone() for name, own in layer.named_parameters()}
    penalties = {name: torch.rand_like(own) - 0.3 for name, own in start.items()}
    sgd = torch.optim.SGD(layer.parameters(), lr=0.3)
    for _ in range(4):
        sgd.zero_grad()
        norm = sum((penalties[name] * own.abs()).sum() for name, own in layer.named_parameters())
        (nn.functional.cross_entropy(layer(features), labels) + norm).backward()
        sgd.step()
    after = unrolled(start, penalties, features, labels, 0.3, 4)
    for name, own in layer.named_parameters():
        torch.testing.assert_close(after[name], own.detach(), rtol=1e-12, atol=1e-14)


def test_after_one_step_phi_gets_the_gradient_that_the_formula_gives() -> None:
    """theta' = theta - alpha (grad L_a + phi sign theta), so dL_b/dphi = - alpha sign(theta) dL_b/dtheta'."""
    torch.manual_seed(0)
    features, labels = torch.randn(2, 6, 4).double(), torch.tensor([[0, 1, 2, 0, 1, 2]] * 2)
    start = {"weight": torch.randn(3, 4).double(), "bias": torch.randn(3).double()}
    penalties = {name: torch.rand_like(own).requires_grad_() for name, own in start.items()}
    after = unrolled(start, penalties, features[0], labels[0], 0.3, 1)
    judged = task_loss(after, features[1], labels[1])
    by_phi = torch.autograd.grad(judged, list(penalties.values()), retain_graph=True)
    by_theta = torch.autograd.grad(judged, list(after.values()))
    for phi, theta, own in zip(by_phi, by_theta, start.values(), strict=True):
        torch.testing.assert_close(phi, -0.3 * own.sign() * theta)


@pytest.mark.parametrize("settings", [{}, {"penalty_rate": 0.3, "inner_rate": 0.5, "inner_steps": 5}])
def test_the_gradient_of_phi_through_all_steps_equals_finite_differences(settings: dict[str, Any]) -> None:
    algorithm, episode = metareg(**settings), episode_of()
    found = gradients(algorithm, algorithm.losses(episode, {})["meta_test"])
    for name, own in algorithm.learned_penalty.items():
        numeric = numeric_gradient(lambda: algorithm.losses(episode, {})["meta_test"], own.data)
        torch.testing.assert_close(found[f"learned_penalty.{name}"], numeric, rtol=1e-6, atol=1e-9)


def test_the_other_gradients_equal_finite_differences() -> None:
    algorithm, episode = metareg(), episode_of()
    for term, names in {
        "classification": BACKBONE | CLASSIFIER,
        "regulariser": CLASSIFIER,
        "tasks": TASKS,
    }.items():
        found = gradients(algorithm, algorithm.losses(episode, {})[term])
        for name in names:
            parameter = algorithm.get_parameter(name)
            numeric = numeric_gradient(lambda term=term: algorithm.losses(episode, {})[term], parameter.data)
            torch.testing.assert_close(found[name], numeric, rtol=1e-6, atol=1e-9)


def test_the_pair_is_the_first_meta_train_and_the_meta_test_domain() -> None:
    algorithm = metareg()
    first = algorithm.losses(episode_of((2, 1, 0)), {})
    with torch.no_grad():
        algorithm.tasks.weight[:2] += 1.0  # not domain 2's
    assert algorithm.losses(episode_of((2, 1, 0)), {})["meta_test"] == first["meta_test"]
    assert algorithm.losses(episode_of((2, 1, 0)), {})["tasks"] != first["tasks"]
    with torch.no_grad():
        algorithm.tasks.weight[2] += 1.0
    assert algorithm.losses(episode_of((2, 1, 0)), {})["meta_test"] != first["meta_test"]


def test_a_domain_that_the_episode_lacks_keeps_its_task_network() -> None:
    algorithm = built(MetaReg, domains=DOMAINS + 1)
    found = gradients(algorithm, algorithm.losses(episode_of((3, 1, 0)), {})["tasks"])
    assert [own.abs().max() > 0 for own in found["tasks.weight"]] == [True, True, False, True]


@pytest.mark.parametrize(
    ("phase_one", "progress", "learned", "applied"),
    [(0.0, 0.0, True, True), (0.0, 0.9, True, True), (0.5, 0.49, True, False), (0.5, 0.5, False, True)],
)
def test_the_phases(phase_one: float, progress: float, learned: bool, applied: bool) -> None:
    algorithm = metareg(phase_one=phase_one)
    algorithm.progress.fill_(progress)
    terms = algorithm.losses(episode_of(), {})
    assert (moved_by(algorithm, terms["meta_test"]) == PENALTIES) == learned
    assert (terms["regulariser"] != 0) == applied
    assert terms["meta_test"] == metareg().losses(episode_of(), {})["meta_test"]  # logged all along
    assert moved_by(algorithm, terms["classification"]) == BACKBONE | CLASSIFIER


def test_a_negative_weight_leaves_its_parameter_alone_in_the_end() -> None:
    algorithm = metareg()
    penalties = algorithm.penalties()
    found = gradients(algorithm, algorithm.losses(episode_of(), {})["regulariser"])
    assert (penalties["weight"] < 0).any()
    for name, own in algorithm.classifier.named_parameters():
        expected = penalties[name].clamp_min(0) * own.sign()
        torch.testing.assert_close(found[f"classifier.{name}"], expected)


def test_descending_on_phi_lowers_the_loss_on_the_other_domain() -> None:
    algorithm, episode = metareg(), episode_of()

    def judged() -> Tensor:
        return algorithm.losses(episode, {})["meta_test"]

    before = judged()
    optimizer = torch.optim.SGD(algorithm.learned_penalty.parameters(), lr=1.0)
    for _ in range(20):
        optimizer.zero_grad()
        judged().backward()
        optimizer.step()
    assert judged() < before - 0.01


def test_with_a_regulariser_that_stays_zero_training_is_that_of_erm() -> None:
    """Also where gradients are clipped: what is beside the network is clipped by itself."""
    erm, own = (
        network_after_training("erm"),
        network_after_training("metareg", penalty_rate=0.0, phase_one=0.0),
    )
    assert erm.keys() == own.keys()
    for name, parameter in own.items():
        torch.testing.assert_close(parameter, erm[name], rtol=0, atol=1e-6)
