from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor
from torch.distributions import Independent, Normal
from torch.distributions import kl_divergence as torch_kl_divergence

from metavib.nn.functional.gaussian import Gaussian, kl_divergence, standard_normal_like


def gaussian(mean: list[float], variance: list[float]) -> Gaussian:
    return Gaussian(
        torch.tensor(mean, dtype=torch.float64), torch.tensor(variance, dtype=torch.float64).log()
    )


def as_distribution(own: Gaussian) -> Independent:
    return Independent(Normal(own.mean, (0.5 * own.log_variance).exp()), 1)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Gaussian, Gaussian]:
    """Two Gaussians of one shape: any batch, any values that training could meet."""
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=3, max_side=4))
    means, log_variances = (hnp.arrays(np.float64, (2, *shape), elements=st.floats(-b, b)) for b in (20, 6))
    mean, log_variance = torch.from_numpy(draw(means)), torch.from_numpy(draw(log_variances))
    return Gaussian(mean[0], log_variance[0]), Gaussian(mean[1], log_variance[1])


@settings(max_examples=60, deadline=None)
@given(pairs())
def test_divergence_equals_the_one_of_torch_and_is_never_negative(pair: tuple[Gaussian, Gaussian]) -> None:
    p, q = pair
    divergence = kl_divergence(p, q)
    expected = torch_kl_divergence(as_distribution(p), as_distribution(q))
    torch.testing.assert_close(divergence, expected, rtol=1e-9, atol=1e-9)
    assert divergence.shape == p.mean.shape[:-1]
    assert (divergence >= -1e-9).all()


def test_divergence_of_one_dimension_by_hand_in_both_directions() -> None:
    wide, unit = gaussian([1.0], [4.0]), gaussian([0.0], [1.0])
    assert kl_divergence(wide, unit).item() == pytest.approx((4 + 1 - 1 - math.log(4)) / 2)
    assert kl_divergence(unit, wide).item() == pytest.approx((1 / 4 + 1 / 4 - 1 + math.log(4)) / 2)


def test_divergence_is_summed_over_dimensions_and_not_over_the_batch() -> None:
    p = Gaussian(torch.tensor([[1.0, 2.0], [0.0, 3.0]]), torch.zeros(2, 2))
    assert kl_divergence(p, standard_normal_like(p)).tolist() == [2.5, 4.5]  # |mean|^2 / 2


def test_divergence_of_equal_gaussians_is_exactly_zero() -> None:
    p = Gaussian(torch.randn(5, 3), torch.randn(5, 3))
    assert torch.equal(kl_divergence(p, p), torch.zeros(5))


def test_standard_normal_has_the_shape_and_type_of_the_other() -> None:
    other = standard_normal_like(gaussian([1.0, 2.0, 3.0], [1.0, 1.0, 1.0]))
    assert torch.equal(other.mean, torch.zeros(3, dtype=torch.float64))
    assert torch.equal(other.log_variance.exp(), torch.ones(3, dtype=torch.float64))


def test_sample_without_noise_is_the_mean() -> None:
    p = gaussian([1.0, -2.0], [4.0, 9.0])
    assert torch.equal(p.sample(torch.zeros(3, 2, dtype=torch.float64)), p.mean.expand(3, 2))


def test_sample_moves_by_the_deviation_and_not_by_the_variance() -> None:
    p = gaussian([1.0, -2.0], [4.0, 9.0])
    torch.testing.assert_close(
        p.sample(torch.ones(2, dtype=torch.float64)), p.mean + torch.tensor([2.0, 3.0])
    )


def test_many_samples_have_the_mean_and_the_variance() -> None:
    p = gaussian([1.0, -2.0], [4.0, 0.25])
    noise = torch.randn(20_000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    samples, variance = p.sample(noise), p.log_variance.exp()
    standard_error = (variance / 20_000).sqrt()
    assert ((samples.mean(dim=0) - p.mean).abs() < 4 * standard_error).all()
    torch.testing.assert_close(samples.var(dim=0), variance, rtol=0.04, atol=0)


def test_select_takes_rows_in_the_order_asked_for() -> None:
    p = Gaussian(torch.arange(6.0).view(3, 2), -torch.arange(6.0).view(3, 2))
    chosen = p.select(torch.tensor([2, 0, 2]))
    assert chosen.mean.tolist() == [[4, 5], [0, 1], [4, 5]]
    assert torch.equal(chosen.log_variance, -chosen.mean)


def values(count: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return tuple(
        torch.randn(2, 3, dtype=torch.float64, generator=generator, requires_grad=True) for _ in range(count)
    )


def test_gradients_of_the_divergence_are_those_of_finite_differences() -> None:
    def divergence(mean_p: Tensor, log_p: Tensor, mean_q: Tensor, log_q: Tensor) -> Tensor:
        return kl_divergence(Gaussian(mean_p, log_p), Gaussian(mean_q, log_q))

    assert torch.autograd.gradcheck(divergence, values(4))


def test_gradients_of_a_sample_are_those_of_finite_differences() -> None:
    assert torch.autograd.gradcheck(lambda mean, log, noise: Gaussian(mean, log).sample(noise), values(3))
