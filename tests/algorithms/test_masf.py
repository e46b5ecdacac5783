"""MASF's own mathematics: its losses by hand, its limiting case, and gradients through the inner step."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from small_episodes import CLASSES, built, episode_of, gradients, moved_by, numeric_gradient
from torch import Tensor, nn

from metavib.algorithms.masf import MASF, contrasted_pairs, semi_hard_triplets, symmetrised_kl
from metavib.algorithms.mldg import MLDG
from metavib.data.episodes import Episode, Samples

SETTINGS: dict[str, Any] = {"inner_rate": 0.5, "global_weight": 2.0, "local_weight": 0.3, "margin": 1.0}
SETTINGS |= {"metric_hidden": 7, "metric_width": 3}
MARGIN = torch.tensor(1.5, dtype=torch.float64)


def total(terms: dict[str, Tensor]) -> Tensor:
    return torch.stack(list(terms.values())).sum()


def scattered(count: int = 9) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 3
    return torch.randn(count, 4, dtype=torch.float64, generator=generator), labels


def distances(embeddings: Tensor) -> list[list[float]]:
    return [[(a - b).square().sum().item() for b in embeddings] for a in embeddings]


def test_the_semi_hard_triplets_are_those_of_a_search_one_by_one() -> None:
    embeddings, labels = scattered()
    squared, found = distances(embeddings), []
    for a, p in itertools.permutations(range(len(labels)), 2):
        if labels[a] == labels[p]:
            others = [squared[a][n] for n in range(len(labels)) if labels[n] != labels[a]]
            farther = [own for own in others if own > squared[a][p]]
            negative = min(farther) if farther else max(others)
            found.append(max(0.0, squared[a][p] - negative + 1.5))
    assert any(own == 0 for own in found)
    assert any(own > 1.5 for own in found)  # where no negative is farther
    value = semi_hard_triplets(embeddings, labels, MARGIN)
    assert value.item() == pytest.approx(sum(found) / len(found))


def test_the_contrasted_pairs_are_those_of_a_search_one_by_one() -> None:
    embeddings, labels = scattered()
    squared = distances(embeddings)
    pairs = list(itertools.combinations(range(len(labels)), 2))
    alike = [squared[a][b] for a, b in pairs if labels[a] == labels[b]]
    other = [max(0.0, 1.5 - math.sqrt(squared[a][b])) ** 2 for a, b in pairs if labels[a] != labels[b]]
    value = contrasted_pairs(embeddings, labels, MARGIN)
    assert value.item() == pytest.approx(sum(alike) / len(alike) + sum(other) / len(other))


@pytest.mark.parametrize("local", [semi_hard_triplets, contrasted_pairs])
def test_a_metric_loss_has_the_gradient_of_finite_differences_and_is_finite_at_the_edges(local: Any) -> None:
    embeddings, labels = scattered()
    assert torch.autograd.gradcheck(lambda given: local(given, labels, MARGIN), embeddings.requires_grad_())
    for edge in (torch.zeros(4, 2), torch.ones(1, 2)):
        for kinds in (torch.zeros(len(edge), dtype=torch.int64), torch.arange(len(edge))):
            given = edge.clone().requires_grad_()
            local(given, kinds, MARGIN.float()).backward()
            assert given.grad is not None
            assert given.grad.isfinite().all()


def test_the_symmetrised_divergence_is_half_the_sum_of_both() -> None:
    p, q = (torch.tensor(values, dtype=torch.float64) for values in ([0.5, 0.3, 0.2], [0.1, 0.6, 0.3]))
    both = nn.functional.kl_div(q.log(), p, reduction="sum") + nn.functional.kl_div(
        p.log(), q, reduction="sum"
    )
    torch.testing.assert_close(symmetrised_kl(p.log(), q.log()), both / 2)
    assert symmetrised_kl(p.log(), p.log()) == 0


def complete(episode: Episode) -> Episode:
    """With every class in every domain."""
    labels = torch.arange(5) % CLASSES
    return Episode(*(Samples(s.images, labels.expand_as(s.labels).clone(), s.domains) for s in episode))


@pytest.mark.parametrize("lacking", [False, True])
def test_the_global_alignment_is_that_of_a_loop_over_pairs_of_domains_and_classes(lacking: bool) -> None:
    masf, episode = built(MASF, **SETTINGS), complete(episode_of())
    if lacking:
        episode.meta_train.labels[0][episode.meta_train.labels[0] == 1] = 0
    network = {name: own.detach().requires_grad_() for name, own in masf.network().items()}
    loss = masf.cross_entropy(network, episode.meta_train)
    slopes = torch.autograd.grad(loss, list(network.values()))
    moved = {name: own - 0.5 * slope for (name, own), slope in zip(network.items(), slopes, strict=True)}

    def soft(images: Tensor, labels: Tensor, label: int) -> Tensor | None:
        if not (labels == label).any():
            return None
        mean = masf.features(moved, images)[labels == label].mean(dim=0, keepdim=True)
        return torch.softmax(masf.logits(moved, mean)[0] / 2.0, dim=-1)

    divergences = []
    (test_images,), (test_labels,) = episode.meta_test.images, episode.meta_test.labels
    for images, labels in zip(episode.meta_train.images, episode.meta_train.labels, strict=True):
        for label in range(CLASSES):
            p, q = soft(images, labels, label), soft(test_images, test_labels, label)
            if p is not None and q is not None:
                divergences.append(((p * (p / q).log()).sum() + (q * (q / p).log()).sum()) / 2)
    assert len(divergences) == 2 * CLASSES - lacking
    terms = masf.losses(episode, {})
    torch.testing.assert_close(terms["global_alignment"], 2.0 * torch.stack(divergences).mean())
    torch.testing.assert_close(terms["classification"], loss)


def test_without_alignment_the_network_learns_what_mldg_learns_without_meta_test() -> None:
    without = SETTINGS | {"global_weight": 0.0, "local_weight": 0.0}
    masf, mldg, episode = (
        built(MASF, **without),
        built(MLDG, inner_rate=0.5, meta_test_weight=0.0),
        episode_of(),
    )
    mldg.load_state_dict({name: masf.state_dict()[name] for name in mldg.state_dict()})
    terms = masf.losses(episode, {})
    own, expected = total(terms) - terms["metric_network"], total(mldg.losses(episode, {}))
    torch.testing.assert_close(own, expected)
    found = gradients(masf, total(terms))
    for name, slope in gradients(mldg, expected).items():
        torch.testing.assert_close(found[name], slope)


def test_every_term_moves_only_the_parameters_that_it_is_for() -> None:
    masf, episode = built(MASF, **SETTINGS), complete(episode_of())
    terms = masf.losses(episode, {})
    network, metric = set(masf.network()), {n for n, _ in masf.named_parameters() if "metric" in n}
    assert moved_by(masf, terms["classification"]) == network
    assert moved_by(masf, terms["global_alignment"]) == network
    assert (
        moved_by(masf, terms["local_metric"]) == network
    )  # the classifier decides where the inner step goes
    assert moved_by(masf, terms["metric_network"]) == metric
    torch.testing.assert_close(terms["local_metric"], 0.3 * terms["metric_network"])


@pytest.mark.parametrize("metric", ["triplet", "contrastive"])
def test_the_gradients_through_the_inner_step_agree_with_finite_differences(metric: str) -> None:
    masf, episode = built(MASF, **SETTINGS, metric=metric), complete(episode_of())
    masf.metric_network[1] = nn.Tanh()
    found = gradients(masf, total(masf.losses(episode, {})))

    def for_network() -> Tensor:
        terms = masf.losses(episode, {})
        return total(terms) - terms["metric_network"]

    for name, parameter in masf.named_parameters():
        own = for_network if name in masf.network() else lambda: masf.losses(episode, {})["metric_network"]
        torch.testing.assert_close(found[name], numeric_gradient(own, parameter), rtol=1e-5, atol=1e-8)


def test_classes_that_no_image_of_an_episode_has_add_no_rows_to_the_alignment() -> None:
    masf, episode = built(MASF, **SETTINGS), episode_of()
    features, labels = torch.randn(15, 4).double(), torch.cat([samples.labels for samples in episode])
    parameters = masf.network()
    expected = masf._global_alignment(parameters, features, labels, 2)
    # 17 more classes, which nothing is ever taken for: the same divergences.
    more = torch.full((17,), -1e4).double()
    wide = dict(parameters) | {
        "classifier.weight": torch.cat([parameters["classifier.weight"], torch.zeros(17, 4).double()]),
        "classifier.bias": torch.cat([parameters["classifier.bias"], more]),
    }
    masf.classes = CLASSES + 17
    assert masf.classes > labels.numel()
    found = masf._global_alignment(wide, features, labels, 2)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
