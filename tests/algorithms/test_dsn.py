from __future__ import annotations

from typing import Any

import pytest
import torch
from small_episodes import (
    DOMAINS,
    IMAGES,
    assert_is_erm,
    built,
    episode_of,
    gradients,
    moved_by,
    network_after_training,
    numeric_gradient,
)
from torch import Tensor, nn

from metavib.algorithms.dsn import DSN, difference, scale_invariant_error

WEIGHTS = {
    "reconstruction_weight": 0.5,
    "difference_weight": 2.0,
    "similarity_weight": 0.25,
}  # float32 has them
TERMS = ["classification", "reconstruction", "difference", "similarity", "domains"]


def dsn(**settings: Any) -> Any:
    algorithm = built(DSN, **{"warm_up": 0.0, "auxiliary_width": 5} | WEIGHTS | settings)
    with torch.no_grad():  # ReLU away from its edge, for finite differences
        algorithm.decoder.hidden.bias += 1.0
        algorithm.private_encoders.hidden_bias += 1.0
    return algorithm


def part(algorithm: DSN, *prefixes: str) -> set[str]:
    return {name for name, _ in algorithm.named_parameters() if name.startswith(prefixes)}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_an_image_that_is_brighter_all_over_is_no_worse() -> None:
    image = drawn(2, 9)
    torch.testing.assert_close(scale_invariant_error(image + 3.0, image), torch.zeros(2).double())
    assert scale_invariant_error(image * 1.5, image).min() > 0


def test_the_error_is_the_formula_of_the_paper() -> None:
    restored, original = drawn(4, 9), drawn(4, 9, seed=1)
    error = original - restored
    expected = error.square().sum(dim=1) / 9 - error.sum(dim=1).square() / 81
    torch.testing.assert_close(scale_invariant_error(restored, original), expected)
    checkered = torch.tensor([1.0, -1.0, 1.0, -1.0])
    assert scale_invariant_error(checkered, torch.zeros(4)) == 1


def test_the_difference_of_orthogonal_codes_is_zero() -> None:
    orthogonal = torch.tensor([[1.0, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]).double()
    shared, private = orthogonal[:, 1:3], orthogonal[:, 3:]
    assert difference(shared, private).abs() < 1e-15
    assert difference(shared + 5.0, 3.0 * private - 1.0).abs() < 1e-15  # shift and size do not count
    assert difference(shared, shared) > 0.1


def test_the_difference_is_one_where_the_codes_are_the_same_line_and_never_more() -> None:
    line = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]]).double()
    assert difference(line, -line).item() == pytest.approx(1.0, abs=1e-5)
    found = difference(drawn(6, 20, 3), drawn(6, 20, 4, seed=1))
    assert found.shape == (6,)
    assert (found > 0).all()
    assert (found < 1).all()


def test_codes_of_many_images_that_know_nothing_of_one_another_differ_by_one_over_their_number() -> None:
    found = difference(drawn(200, 64, 32), drawn(200, 64, 16, seed=1)).mean()
    assert found.item() == pytest.approx(1 / 64, rel=0.1)


def test_codes_that_are_the_same_for_all_images_are_no_trouble() -> None:
    codes = torch.ones(4, 3, requires_grad=True)
    found = difference(codes, torch.randn(4, 2))
    found.backward()
    assert found == 0
    assert codes.grad is not None
    assert codes.grad.isfinite().all()


@pytest.mark.parametrize("domains", [(1, 2, 0), (2, 0)])
def test_the_terms_equal_a_literal_loop_over_domains(domains: tuple[int, ...]) -> None:
    algorithm, episode = dsn(), episode_of(domains)
    samples = episode.all_domains()
    expected: dict[str, list[Tensor]] = {name: [] for name in TERMS}
    for place, domain in enumerate(domains):
        images, labels = samples.images[place], samples.labels[place]
        pixels, shared = images.flatten(1), algorithm.backbone(images)
        private = algorithm.private_encoders(torch.tensor([domain]), pixels)[0]
        restored = algorithm.decoder(shared + private)
        told = nn.functional.cross_entropy(
            algorithm.domain_network(shared), torch.full((IMAGES,), domain, dtype=torch.int64)
        )
        expected["classification"].append(nn.functional.cross_entropy(algorithm.classifier(shared), labels))
        expected["reconstruction"].append(0.5 * (restored - pixels).var(dim=1, correction=0).mean())
        expected["difference"].append(2.0 * difference(shared, private))
        expected["similarity"].append(-0.25 * told)
        expected["domains"].append(told)
    terms = algorithm.losses(episode, {})
    assert list(terms) == TERMS
    for name, values in expected.items():
        torch.testing.assert_close(terms[name], torch.stack(values).mean())


def test_each_term_moves_only_what_it_is_for() -> None:
    algorithm = dsn()
    terms = algorithm.losses(episode_of(), {})
    backbone, private = part(algorithm, "backbone."), part(algorithm, "private_encoders.")
    assert moved_by(algorithm, terms["classification"]) == backbone | part(algorithm, "classifier.")
    assert moved_by(algorithm, terms["reconstruction"]) == backbone | private | part(algorithm, "decoder.")
    # What all codes of a domain have in common is taken away.
    constant = {"private_encoders.output_bias"}
    assert moved_by(algorithm, terms["difference"]) - constant == (backbone | private) - constant
    assert moved_by(algorithm, terms["similarity"]) == backbone
    assert moved_by(algorithm, terms["domains"]) == part(algorithm, "domain_network.")


def test_the_similarity_reverses_the_gradient_of_the_domain_network() -> None:
    algorithm, episode = dsn(), episode_of()
    samples = episode.all_domains()
    logits = algorithm.domain_network(algorithm.backbone(samples.flat_images()))
    told_apart = nn.functional.cross_entropy(logits, samples.domains.repeat_interleave(IMAGES))
    plain = gradients(algorithm, told_apart)
    reversed_ = gradients(algorithm, algorithm.losses(episode, {})["similarity"])
    for name in part(algorithm, "backbone."):
        torch.testing.assert_close(reversed_[name], -0.25 * plain[name])


@pytest.mark.parametrize(("term", "rises"), [("similarity", True), ("domains", False)])
def test_features_hide_the_domain_and_the_domain_network_looks_for_it(term: str, rises: bool) -> None:
    algorithm, episode = dsn(), episode_of()
    before = algorithm.losses(episode, {})["domains"]
    slopes = gradients(algorithm, algorithm.losses(episode, {})[term])
    with torch.no_grad():
        for name, parameter in algorithm.named_parameters():
            parameter.sub_(0.1 * slopes[name])
    after = algorithm.losses(episode, {})["domains"]
    assert (after > before).item() == rises
    assert after != before


@pytest.mark.parametrize(
    ("term", "names"),
    [
        ("reconstruction", ("backbone.layer.weight", "decoder.output.weight")),
        ("difference", ("backbone.layer.weight", "private_encoders.output_weight")),
        ("similarity", ("backbone.layer.bias",)),
        ("domains", ("domain_network.output.weight",)),
    ],
)
def test_the_gradients_equal_finite_differences(term: str, names: tuple[str, ...]) -> None:
    algorithm, episode = dsn(), episode_of()
    found = gradients(algorithm, algorithm.losses(episode, {})[term])
    for name in names:
        parameter = algorithm.get_parameter(name)
        numeric = numeric_gradient(lambda: algorithm.losses(episode, {})[term], parameter.data)
        torch.testing.assert_close(found[name], numeric, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("progress", "on"), [(0.0, False), (0.19, False), (0.2, True), (0.9, True)])
def test_the_similarity_sets_in_after_the_warm_up(progress: float, on: bool) -> None:
    algorithm = dsn(warm_up=0.2)
    algorithm.progress.fill_(progress)
    terms = algorithm.losses(episode_of(), {})
    assert moved_by(algorithm, terms["similarity"]) == (part(algorithm, "backbone.") if on else set())
    assert moved_by(algorithm, terms["domains"])  # the domain network learns from the start


def test_private_encoders_of_domains_that_the_episode_lacks_get_no_gradient() -> None:
    algorithm = built(DSN, domains=DOMAINS + 1)
    terms = algorithm.losses(episode_of((3, 1, 0)), {})
    slope = gradients(algorithm, torch.stack(list(terms.values())).sum())["private_encoders.output_bias"]
    assert [own.abs().max().item() > 0 for own in slope] == [True, True, False, True]


def test_without_weights_network_and_gradients_are_those_of_erm() -> None:
    algorithm, episode = dsn(**dict.fromkeys(WEIGHTS, 0.0)), episode_of()
    assert_is_erm(algorithm, algorithm.losses(episode, {}), episode)


def test_without_weights_training_is_that_of_erm() -> None:
    """Also where gradients are clipped: the domain network, which learns all along, is clipped by itself."""
    small = {"auxiliary_width": 8}
    erm = network_after_training("erm")
    own = network_after_training("dsn", **dict.fromkeys(WEIGHTS, 0.0), **small)
    for name, parameter in own.items():
        torch.testing.assert_close(parameter, erm[name], rtol=0, atol=1e-6)
