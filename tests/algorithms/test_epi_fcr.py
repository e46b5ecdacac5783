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

from benchmarks.workloads import digit_runs
from metavib.algorithms.epi_fcr import EpiFCR
from metavib.training.step import Program

EPISODIC = {"feature_weight": 0.7, "classifier_weight": 0.4, "random_weight": 0.3}
TERMS = ["classification", "partners", "episodic_features", "episodic_classifier", "random_classifier"]
CLASSIFIER = {"classifier.weight", "classifier.bias"}
BACKBONE = {"backbone.layer.weight", "backbone.layer.bias"}
PARTNERS = {"partner_classifiers.weight", "partner_classifiers.bias"} | {
    f"partner_backbones.{number}.layer.{part}" for number in range(DOMAINS) for part in ("weight", "bias")
}


def epi_fcr(**settings: Any) -> Any:
    """Partners that have become different from the network and from one another."""
    algorithm = built(EpiFCR, **{"warm_up": 0.0} | EPISODIC | settings)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for own in algorithm.partner_backbones.parameters():
            own.add_(torch.randn(own.shape, dtype=torch.float64, generator=generator), alpha=0.3)
    return algorithm


def test_without_the_episodic_terms_network_and_gradients_are_those_of_erm() -> None:
    algorithm, episode = epi_fcr(**dict.fromkeys(EPISODIC, 0.0)), episode_of()
    assert_is_erm(algorithm, algorithm.losses(episode, {}), episode)


def test_each_term_moves_only_what_it_is_for() -> None:
    algorithm = epi_fcr()
    terms = algorithm.losses(episode_of(), {})
    assert list(terms) == TERMS
    assert moved_by(algorithm, terms["classification"]) == BACKBONE | CLASSIFIER
    assert moved_by(algorithm, terms["partners"]) == PARTNERS
    assert moved_by(algorithm, terms["episodic_features"]) == BACKBONE
    assert moved_by(algorithm, terms["episodic_classifier"]) == CLASSIFIER
    assert moved_by(algorithm, terms["random_classifier"]) == BACKBONE


@pytest.mark.parametrize("domains", [(1, 2, 0), (0, 2, 1), (2, 1)])
def test_the_terms_equal_a_literal_loop_over_domains_and_their_partners(domains: tuple[int, ...]) -> None:
    algorithm, episode = epi_fcr(), episode_of(domains)
    samples = episode.all_domains()
    expected: dict[str, list[Tensor]] = {name: [] for name in TERMS}
    for place, own in enumerate(domains):
        other = domains[(place + 1) % len(domains)]
        assert other != own
        images, labels = samples.images[place], samples.labels[place]
        features = algorithm.backbone(images)

        def partner(number: int, of: Tensor) -> Tensor:
            bank = algorithm.partner_classifiers
            return of @ bank.weight[number].T + bank.bias[number]

        logits = {
            "classification": algorithm.classifier(features),
            "partners": partner(own, algorithm.partner_backbones[own](images)),
            "episodic_features": partner(other, features),
            "episodic_classifier": algorithm.classifier(algorithm.partner_backbones[other](images)),
            "random_classifier": features @ algorithm.random_classifier.T,
        }
        for name, values in logits.items():
            expected[name].append(nn.functional.cross_entropy(values, labels))
    weights = dict(zip(TERMS, (1.0, 1.0, *EPISODIC.values()), strict=True))
    for name, term in algorithm.losses(episode, {}).items():
        value = weights[name] * torch.stack(expected[name]).mean()
        torch.testing.assert_close(term, value, rtol=1e-6, atol=1e-8)  # the weights are kept in float32


@pytest.mark.parametrize(
    ("term", "names"),
    [
        ("classification", BACKBONE | CLASSIFIER),
        ("partners", PARTNERS),
        ("episodic_features", BACKBONE),
        ("episodic_classifier", CLASSIFIER),
        ("random_classifier", BACKBONE),
    ],
)
def test_the_gradients_equal_finite_differences(term: str, names: set[str]) -> None:
    algorithm, episode = epi_fcr(), episode_of()
    found = gradients(algorithm, algorithm.losses(episode, {})[term])
    for name in names:
        parameter = algorithm.get_parameter(name)
        numeric = numeric_gradient(lambda: algorithm.losses(episode, {})[term], parameter.data)
        torch.testing.assert_close(found[name], numeric, rtol=1e-6, atol=1e-9)


def test_frozen_halves_matter_and_get_no_gradient() -> None:
    """By finite differences the episodic terms depend on the partners; by our gradients they do not."""
    algorithm, episode = epi_fcr(), episode_of()
    for term, name in {
        "episodic_features": "partner_classifiers.weight",
        "episodic_classifier": "partner_backbones.0.layer.weight",
    }.items():
        parameter = algorithm.get_parameter(name)
        numeric = numeric_gradient(lambda term=term: algorithm.losses(episode, {})[term], parameter.data)
        assert numeric.abs().max() > 1e-3
        assert gradients(algorithm, algorithm.losses(episode, {})[term])[name].abs().max() == 0


@pytest.mark.parametrize(("progress", "on"), [(0.0, False), (0.19, False), (0.2, True), (0.9, True)])
def test_the_episodic_terms_set_in_after_the_warm_up(progress: float, on: bool) -> None:
    algorithm = epi_fcr(warm_up=0.2)
    algorithm.progress.fill_(progress)
    terms = algorithm.losses(episode_of(), {})
    assert terms["partners"] > 0
    assert [(terms[name] != 0).item() for name in TERMS[2:]] == [on] * 3


def test_partners_of_domains_that_the_episode_lacks_get_no_gradient() -> None:
    algorithm = built(EpiFCR, domains=DOMAINS + 1)
    terms = algorithm.losses(episode_of((3, 1, 0)), {})
    moved = moved_by(algorithm, torch.stack(list(terms.values())).sum())
    trained = {number for number in range(4) if f"partner_backbones.{number}.layer.weight" in moved}
    assert trained == {0, 1, 3}


def test_partners_begin_as_the_network_and_the_random_classifier_follows_the_seed() -> None:
    algorithm, again, other = built(EpiFCR), built(EpiFCR), built(EpiFCR, seed=1)
    for partner in algorithm.partner_backbones:
        assert all(map(torch.equal, partner.parameters(), algorithm.backbone.parameters()))
    assert torch.equal(algorithm.random_classifier, again.random_classifier)
    assert not torch.equal(algorithm.random_classifier, other.random_classifier)
    assert "random_classifier" not in algorithm.state_dict()
    assert len({own.sum().item() for own in algorithm.partner_classifiers.weight}) == DOMAINS


def test_there_is_a_partner_for_each_source_domain_and_it_learns_as_the_backbone_does() -> None:
    program = Program(digit_runs(1, "epi_fcr", 2, torch.device("cpu")))
    of_partners = {name for name in program.parameters if name.startswith("partner_backbones.")}
    assert {name.split(".")[1] for name in of_partners} == set("01234")  # six angles, one of them unseen
    assert len(of_partners) == 5 * len(list(program.algorithms[0].backbone.parameters()))
    assert of_partners < program.optimizer.backbone
    assert not any("classifier" in name for name in program.optimizer.backbone)


def test_without_the_episodic_terms_training_is_that_of_erm() -> None:
    """Also where gradients are clipped: what is beside the network is clipped by itself."""
    erm, own = (
        network_after_training("erm"),
        network_after_training("epi_fcr", **dict.fromkeys(EPISODIC, 0.0)),
    )
    assert erm.keys() == own.keys()
    for name, parameter in own.items():
        torch.testing.assert_close(parameter, erm[name], rtol=0, atol=1e-6)
