"""The estimators against distributions whose mutual information is known, and at their limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from metavib.nn.functional.gaussian import Gaussian, kl_divergence
from metavib.nn.functional.information import (
    Information,
    binned,
    distances_between,
    from_distances,
    symbol_entropy,
)


def pairwise(own: Gaussian, labels: Tensor) -> Information:
    return from_distances(distances_between(own), labels)


def codes(means: Tensor, variance: float = 1.0) -> Gaussian:
    return Gaussian(means.double(), torch.full_like(means.double(), math.log(variance)))


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def shuffled(labels: Tensor) -> Tensor:
    return labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))]


@st.composite
def samples(draw: st.DrawFn) -> tuple[Gaussian, Tensor]:
    """Gaussian codes of some images with labels: any values that a network could give."""
    count, units = draw(st.integers(1, 12)), draw(st.integers(1, 5))
    means, log_variances = (
        hnp.arrays(np.float64, (count, units), elements=st.floats(-b, b)) for b in (20, 6)
    )
    labels = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    own = Gaussian(torch.from_numpy(draw(means)), torch.from_numpy(draw(log_variances)))
    return own, torch.tensor(labels)


# --- the Gaussian channel ---------------------------------------------------------------------------------


@pytest.mark.parametrize("signal_to_noise", [0.01, 0.1, 1.0, 10.0])
def test_the_capacity_of_a_gaussian_channel_lies_below_the_estimate(signal_to_noise: float) -> None:
    # X ~ N(0, snr) at 1,000 quantiles, T = X + N(0, 1): I(X;T) = 1/2 log2(1 + snr).
    quantiles = (torch.arange(1_000, dtype=torch.float64) + 0.5) / 1_000
    means = math.sqrt(signal_to_noise) * torch.special.ndtri(quantiles).unsqueeze(1)
    labels = torch.zeros(1_000, dtype=torch.int64)
    found = pairwise(codes(means), labels).with_input.item()
    assert found > 0.5 * math.log2(1 + signal_to_noise)
    # The bound has a closed form too. With D = (x - x')^2 / 2,
    # E_x[-log E_x' exp(-D)] = 1/2 log(1 + snr) + 1/2 snr / (1 + snr), in nats.
    nats = 0.5 * math.log(1 + signal_to_noise) + 0.5 * signal_to_noise / (1 + signal_to_noise)
    assert found == pytest.approx(nats / math.log(2), rel=0.02)


def test_independent_channels_add_up() -> None:
    grid = torch.cartesian_prod(*([torch.linspace(-2, 2, 25, dtype=torch.float64)] * 2))
    labels = torch.zeros(len(grid), dtype=torch.int64)
    one = pairwise(codes(grid[::25, :1].contiguous()), labels[:25]).with_input
    torch.testing.assert_close(pairwise(codes(grid), labels).with_input, 2 * one)


@pytest.mark.parametrize("distance", [0.0, 0.5, 1.0, 2.0, 4.0, 8.0])
def test_two_signals_in_gaussian_noise_lie_below_the_estimate(distance: float) -> None:
    # One bit through T = +-distance/2 + N(0, 1): the truth by integration, which needs no estimator.
    values = torch.linspace(-20, 20, 40_001, dtype=torch.float64)
    parts = [
        torch.exp(-0.5 * (values - m).square()) / math.sqrt(2 * math.pi)
        for m in (-distance / 2, distance / 2)
    ]
    density = sum(parts) / 2
    truth = -torch.trapezoid(torch.xlogy(density, density), values) - 0.5 * math.log(2 * math.pi * math.e)
    means = torch.tensor([[-distance / 2], [distance / 2]])
    labels = torch.tensor([0, 1])
    found = pairwise(codes(means), labels)
    assert found.with_input >= truth / math.log(2) - 1e-9
    assert found.with_label == found.with_input  # every signal has a label of its own
    if distance in (0.0, 8.0):
        torch.testing.assert_close(found.with_input, truth / math.log(2), atol=1e-3, rtol=0)


# --- limits of the pairwise estimator ---------------------------------------------------------------------


def test_codes_that_are_all_the_same_know_nothing() -> None:
    same = codes(drawn(1, 7).expand(30, 7) + 1_000.0)
    found = pairwise(same, torch.arange(30) % 3)
    assert found.with_input.item() == pytest.approx(0, abs=1e-9)
    assert found.with_label.item() == pytest.approx(0, abs=1e-9)


def test_codes_far_apart_know_every_image_and_every_label() -> None:
    labels = torch.tensor([0] * 16 + [1] * 8 + [2] * 8)
    found = pairwise(codes(1_000 * drawn(32, 7)), labels)
    assert found.with_input.item() == pytest.approx(5)
    assert found.with_label.item() == pytest.approx(1.5)


def test_codes_that_say_the_class_alone_know_the_label_and_no_more() -> None:
    labels = torch.arange(40) % 4
    found = pairwise(codes(100 * drawn(4, 7)[labels]), labels)
    assert found.with_input.item() == pytest.approx(2)
    assert found.with_label.item() == pytest.approx(2)


def test_variances_tell_images_apart_where_means_are_the_same() -> None:
    own = Gaussian(torch.zeros(2, 50), torch.tensor([-5.0, 5.0]).unsqueeze(1).expand(2, 50))
    assert pairwise(own, torch.tensor([0, 1])).with_input.item() == pytest.approx(1)


def test_labels_that_have_nothing_to_do_with_the_codes_are_not_known_where_the_noise_is_wide() -> None:
    labels = torch.arange(600) % 4
    independent = pairwise(codes(drawn(600, 5), variance=2.0), labels)
    assert independent.with_input > 1
    assert 0 <= independent.with_label < 0.05


def test_where_the_noise_is_small_any_labels_seem_known_and_shuffled_ones_show_it() -> None:
    labels = torch.arange(600) % 4
    means = drawn(600, 5) + 3 * drawn(4, 5, seed=2)[labels]
    for variance, bias in ((1e-4, 2.0), (4.0, 0.0)):
        own = codes(means, variance)
        assert pairwise(own, shuffled(labels)).with_label.item() == pytest.approx(bias, abs=0.1)
        assert pairwise(own, labels).with_label > 1.5


@settings(max_examples=60, deadline=None)
@given(samples())
def test_no_estimate_exceeds_what_there_is_to_know(
    sample: tuple[Gaussian, Tensor],
) -> None:
    own, labels = sample
    estimate = pairwise(own, labels)
    assert -1e-9 <= estimate.with_input <= math.log2(len(labels)) + 1e-9
    for found in (estimate, binned(own.mean, labels)):
        assert found.with_input.isfinite()
        assert found.with_label <= symbol_entropy(labels) + 1e-9


@settings(max_examples=30, deadline=None)
@given(samples(), st.randoms(use_true_random=False))
def test_the_order_of_images_units_and_class_numbers_does_not_matter(
    sample: tuple[Gaussian, Tensor], chance: object
) -> None:
    own, labels = sample
    images = torch.tensor(chance.sample(range(len(labels)), len(labels)))  # type: ignore[attr-defined]
    units = torch.tensor(chance.sample(range(own.mean.shape[1]), own.mean.shape[1]))  # type: ignore[attr-defined]
    moved = Gaussian(*(part[images][:, units] for part in own))
    renamed = (3 - labels)[images]
    torch.testing.assert_close(pairwise(moved, renamed), pairwise(own, labels))
    torch.testing.assert_close(binned(moved.mean, renamed), binned(own.mean, labels))


# --- distances --------------------------------------------------------------------------------------------


def test_distances_are_the_divergences_of_every_pair() -> None:
    own = Gaussian(3 * drawn(9, 6) + 50.0, drawn(9, 6, seed=1))
    expected = torch.stack([kl_divergence(Gaussian(own.mean[i], own.log_variance[i]), own) for i in range(9)])
    torch.testing.assert_close(distances_between(own), expected)


def test_half_precision_means_are_measured_in_double() -> None:
    own = Gaussian(drawn(20, 4).bfloat16(), torch.zeros(20, 4, dtype=torch.bfloat16))
    found = pairwise(own, torch.arange(20) % 2)
    assert found.with_input.dtype == torch.float64
    doubled = Gaussian(own.mean.double(), own.log_variance.double())
    assert found == pairwise(doubled, torch.arange(20) % 2)


def test_a_sample_that_would_fill_the_memory_is_refused() -> None:
    with pytest.raises(AssertionError):
        pairwise(codes(torch.zeros(2_000, 1)), torch.zeros(2_000, dtype=torch.int64))


# --- binning ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("errors", [0, 10, 25, 50])
def test_a_noisy_binary_channel_has_its_closed_form(errors: int) -> None:
    # T is Y but for some errors in a hundred: I(T;Y) = 1 - h(share of errors).
    labels = torch.arange(200) % 2
    received = labels.clone()
    received[: 2 * errors] = 1 - received[: 2 * errors]
    share = errors / 100
    lost = -sum(p * math.log2(p) for p in (share, 1 - share) if p > 0)
    found = binned(received.double().unsqueeze(1), labels, bins=2)
    assert found.with_input.item() == pytest.approx(1)
    assert found.with_label.item() == pytest.approx(1 - lost, abs=1e-12)


def test_an_erasure_channel_has_its_closed_form() -> None:
    # A quarter of the symbols is lost: H(T) = h(1/4) + 3/4, I(T;Y) = 3/4.
    labels = torch.arange(80) % 2
    received = torch.where(torch.arange(80) < 20, 0.5, labels.double())
    found = binned(received.unsqueeze(1), labels, bins=3)
    assert found.with_input.item() == pytest.approx(2 - 0.75 * math.log2(3) + 0.75)
    assert found.with_label.item() == pytest.approx(0.75)


def test_independent_symbols_say_nothing_of_one_another() -> None:
    pairs = torch.cartesian_prod(torch.arange(4), torch.arange(3))
    found = binned(pairs[:, :1].double(), pairs[:, 1], bins=4)
    assert found.with_input.item() == pytest.approx(2)
    assert found.with_label.item() == pytest.approx(0, abs=1e-12)


def test_all_units_are_one_symbol() -> None:
    # Each unit alone knows nothing of the label, both together all (exclusive or).
    bits = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    labels = torch.tensor([0, 1, 1, 0])
    assert binned(bits[:, :1], labels, bins=2).with_label.item() == pytest.approx(0)
    assert [part.item() for part in binned(bits, labels, bins=2)] == pytest.approx([2, 1])


def test_bins_are_as_wide_as_one_another_from_the_smallest_to_the_largest_value() -> None:
    values = torch.tensor([[-1.0], [-0.51], [-0.49], [0.49], [0.51], [1.0]])
    labels = torch.zeros(6, dtype=torch.int64)
    expected = symbol_entropy(torch.tensor([0, 0, 1, 2, 3, 3]))
    assert binned(values, labels, bins=4).with_input == expected


def test_values_that_are_all_the_same_know_nothing() -> None:
    assert [part.item() for part in binned(torch.full((8, 3), 2.5), torch.arange(8) % 2)] == [0, 0]


def test_a_wide_layer_is_known_altogether_whatever_it_says() -> None:
    found = binned(drawn(64, 100), torch.arange(64) % 4)
    assert [part.item() for part in found] == pytest.approx([6, 2])
