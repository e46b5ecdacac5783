from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from metavib.nn.functional.predictive import (
    Predictive,
    class_logits,
    class_means,
    entropy,
    masked_mean,
    means_without_each,
    renumbered,
)


def predictive(probabilities: list[list[list[list[float]]]]) -> Predictive:
    """From probabilities [classifier draws][latent draws][batch][classes]."""
    return Predictive(torch.tensor(probabilities, dtype=torch.float64).log())


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True)


def test_prediction_is_the_mean_of_the_probabilities_of_all_draws() -> None:
    drawn = predictive([[[[0.2, 0.8]], [[0.6, 0.4]]], [[[0.0, 1.0]], [[1.0, 0.0]]]])
    torch.testing.assert_close(drawn.probabilities(), torch.tensor([[0.45, 0.55]], dtype=torch.float64))


def test_prediction_of_a_classifier_averages_its_latent_codes_only() -> None:
    drawn = predictive([[[[0.2, 0.8]], [[0.6, 0.4]]], [[[0.0, 1.0]], [[1.0, 0.0]]]])
    expected = torch.tensor([[[0.4, 0.6]], [[0.5, 0.5]]], dtype=torch.float64)
    torch.testing.assert_close(drawn.by_classifier(), expected)


@pytest.mark.parametrize("classes", [1, 2, 7])
def test_entropy_of_the_uniform_distribution_is_log_classes(classes: int) -> None:
    uniform = torch.full((1, classes), 1 / classes, dtype=torch.float64)
    assert entropy(uniform).item() == pytest.approx(math.log(classes), abs=1e-12)


def test_entropy_of_certainty_is_exactly_zero() -> None:
    assert entropy(torch.eye(3)).tolist() == [0, 0, 0]
    certain = predictive([[[[0.0, 1.0, 0.0]]], [[[0.0, 1.0, 0.0]]]])
    assert certain.entropy().item() == 0
    assert certain.model_entropy().item() == 0


def test_the_model_is_certain_where_its_classifiers_agree_whatever_the_latent_codes_say() -> None:
    codes = [[[0.9, 0.1]], [[0.3, 0.7]]]
    drawn = predictive([codes, codes, codes])
    assert drawn.entropy().item() == pytest.approx(-(0.6 * math.log(0.6) + 0.4 * math.log(0.4)))
    assert drawn.model_entropy().item() == pytest.approx(0, abs=1e-12)


def test_model_entropy_is_the_mutual_information_of_label_and_classifier() -> None:
    drawn = predictive([[[[0.9, 0.1], [1.0, 0.0]]], [[[0.1, 0.9], [0.0, 1.0]]]])
    entropy_of_one = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))
    assert drawn.model_entropy().tolist() == pytest.approx([math.log(2) - entropy_of_one, math.log(2)])


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10_000),
    st.floats(0, 30),
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.just(4), st.integers(1, 5)),
)
def test_model_entropy_lies_between_zero_and_the_whole(
    seed: int, sharpness: float, shape: tuple[int, ...]
) -> None:
    drawn = Predictive((sharpness * random(*shape, seed=seed).detach()).log_softmax(dim=-1))
    assert (drawn.model_entropy() >= 0).all()
    assert (drawn.model_entropy() <= drawn.entropy().clamp_min(0) + 1e-12).all()
    assert (drawn.entropy() <= math.log(shape[-1]) + 1e-12).all()


def test_rounding_does_not_make_the_model_entropy_negative() -> None:
    one = random(1, 2, 1_000, 3).detach().float().log_softmax(dim=-1)
    agreeing = Predictive(one.expand(3, -1, -1, -1))
    rounded = agreeing.entropy() - entropy(agreeing.by_classifier()).mean(dim=0)
    assert rounded.min() < 0  # by a few in the last digit
    assert agreeing.model_entropy().min() == 0
    assert agreeing.model_entropy().max() < 1e-6


LABELS = torch.tensor([3, 0, 3, 1, 0, 3])  # class 2 has no sample


def test_class_means_equal_those_of_a_loop_and_an_absent_class_is_marked() -> None:
    features = random(6, 2)
    means = class_means(features, LABELS, 4)
    assert means.present.tolist() == [True, True, False, True]
    assert means.features[2].tolist() == [0, 0]
    for label in (0, 1, 3):
        own = [features[n] for n in range(6) if LABELS[n] == label]
        torch.testing.assert_close(means.features[label], sum(own) / len(own))


def test_the_order_of_samples_makes_no_difference_to_class_means() -> None:
    features, order = random(6, 2), torch.tensor([5, 2, 0, 4, 3, 1])
    means, shuffled = class_means(features, LABELS, 4), class_means(features[order], LABELS[order], 4)
    torch.testing.assert_close(means.features, shuffled.features, rtol=0, atol=1e-15)


def test_class_logits_equal_those_of_a_loop_with_minus_infinity_for_absent_classes() -> None:
    classifiers, latents = random(2, 3, 5), random(4, 6, 5, seed=1)
    present = torch.tensor([True, False, True])
    logits = class_logits(classifiers, latents, present)
    assert logits.shape == (2, 4, 6, 3)
    for p in range(2):
        for z in range(4):
            for n in range(6):
                for c in (0, 2):
                    assert logits[p, z, n, c].item() == pytest.approx(
                        sum((classifiers[p, c, d] * latents[z, n, d]).item() for d in range(5))
                    )
    assert (logits[..., 1] == -math.inf).all()


def test_masked_mean_leaves_out_what_is_not_counted_even_infinity_and_nan() -> None:
    values = torch.tensor([1.0, math.inf, 4.0, math.nan])
    assert masked_mean(values, torch.tensor([True, False, True, False])).item() == 2.5


def test_masked_mean_of_nothing_is_zero() -> None:
    assert masked_mean(torch.tensor([1.0, math.inf]), torch.tensor([False, False])).item() == 0


def test_gradient_of_a_masked_mean_is_finite_where_an_absent_class_made_an_infinite_loss() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.5], [0.0, 1.0, 2.0]], requires_grad=True)
    masked = logits.masked_fill(torch.tensor([False, False, True]), -math.inf)
    losses = -masked.log_softmax(dim=-1)[[0, 1], [1, 2]]  # the label of the second sample is absent
    assert losses[1].item() == math.inf
    masked_mean(losses, torch.tensor([True, False])).backward()
    assert logits.grad is not None
    assert logits.grad[0, :2].abs().min() > 0
    assert (logits.grad[0, 2], *logits.grad[1]) == (0, 0, 0, 0)


def test_gradients_are_those_of_finite_differences() -> None:
    present = torch.tensor([True, False, True])
    counted = torch.tensor([True, False, True, True, False, True])

    def objective(features: Tensor, classifiers: Tensor, latents: Tensor) -> Tensor:
        means = class_means(features, LABELS, 4).features
        log_probabilities = class_logits(classifiers, latents, present).log_softmax(dim=-1)[..., [0, 2]]
        return masked_mean(log_probabilities.mean(dim=(0, 1, 3)), counted) + means.square().sum()

    assert torch.autograd.gradcheck(objective, (random(6, 2), random(2, 3, 5), random(2, 6, 5, seed=1)))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=30))
def test_other_numbers_tell_the_same_classes_apart_and_are_below_the_number_of_samples(
    classes: list[int],
) -> None:
    labels = torch.tensor(classes)
    numbers = renumbered(labels)
    assert ((numbers >= 0) & (numbers < len(labels))).all()
    assert torch.equal(labels.unsqueeze(1) == labels, numbers.unsqueeze(1) == numbers)
    stacked = torch.stack([labels, labels.flip(0)])
    assert torch.equal(torch.vmap(renumbered)(stacked), torch.stack([numbers, numbers.flip(0)]))


@pytest.mark.parametrize("domains", [2, 3, 8, 9, 20])
def test_means_without_a_domain_are_those_over_all_others(domains: int) -> None:
    features = random(domains, 4, 3)
    labels = torch.randint(5, (domains, 4), generator=torch.Generator().manual_seed(1))
    found = means_without_each(features, labels, 5)
    for own in range(domains):
        others = [domain for domain in range(domains) if domain != own]
        expected = class_means(features[others].flatten(0, 1), labels[others].flatten(), 5)
        torch.testing.assert_close(found.features[own], expected.features, rtol=1e-13, atol=1e-15)
        assert torch.equal(found.present[own], expected.present)


def test_gradients_of_means_without_each_are_those_of_the_others_pooled() -> None:
    labels = torch.tensor([[0, 1], [1, 1], [2, 0], [0, 0]])
    features = random(4, 2, 3)
    weights = random(4, 4, 3, seed=1).detach()
    total = (weights * means_without_each(features, labels, 4).features).sum()
    found = torch.autograd.grad(total, features)[0]
    others = [[d for d in range(4) if d != own] for own in range(4)]
    pooled = [class_means(features[them].flatten(0, 1), labels[them].flatten(), 4) for them in others]
    expected = (weights * torch.stack([means.features for means in pooled])).sum()
    torch.testing.assert_close(found, torch.autograd.grad(expected, features)[0], rtol=1e-13, atol=1e-15)
