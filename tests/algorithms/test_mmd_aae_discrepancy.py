from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from metavib.algorithms.mmd_aae import pairwise_mmd, rbf_mixture, squared_distances

WIDTHS = (0.5, 1.0, 4.0)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def normal_grid(mean: float, deviation: float, count: int = 1000) -> Tensor:
    """As good as a sample of so many: the quantiles in the middle of equal shares."""
    shares = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return mean + deviation * torch.special.ndtri(shares)


def test_squared_distances_are_torchs_own() -> None:
    first, second = drawn(7, 4), drawn(5, 4, seed=1)
    torch.testing.assert_close(squared_distances(first, second), torch.cdist(first, second) ** 2)
    assert squared_distances(first + 1e4, first + 1e4).min() >= 0  # rounding makes no distance negative


def test_the_kernel_is_the_mean_of_its_parts() -> None:
    found = rbf_mixture(torch.tensor([[2.0]]), (0.5, 1.0), unit=2.0)
    assert found.item() == pytest.approx((math.exp(-1.0) + math.exp(-0.5)) / 2)


def expected_kernel(mean: float, variance: float, width: float) -> float:
    """E exp( - (x - y)^2 / (2 width) ) where x - y is normal with this mean and variance."""
    return math.sqrt(width / (width + variance)) * math.exp(-(mean**2) / (2 * (width + variance)))


def test_between_gaussians_it_is_the_closed_form() -> None:
    gaussians = [(0.0, 1.0), (1.5, 1.0), (0.5, 2.0)]
    direction = torch.tensor([0.6, 0.0, -0.8], dtype=torch.float64)  # any line: distances are all that counts
    codes = torch.stack([normal_grid(*own).unsqueeze(-1) * direction for own in gaussians])
    found = pairwise_mmd(codes, WIDTHS, unit=1.0)

    def similarity(first: tuple[float, float], second: tuple[float, float]) -> float:
        mean, variance = first[0] - second[0], first[1] ** 2 + second[1] ** 2
        return sum(expected_kernel(mean, variance, width) for width in WIDTHS) / len(WIDTHS)

    for i, first in enumerate(gaussians):
        for j, second in enumerate(gaussians):
            closed = similarity(first, first) + similarity(second, second) - 2 * similarity(first, second)
            assert found[i, j].item() == pytest.approx(closed, abs=2e-4)
    assert found[0, 1] > 0.1


def test_it_is_zero_for_the_same_samples_in_any_order_and_positive_otherwise() -> None:
    codes = drawn(40, 6)
    domains = torch.stack([codes, codes.flip(0), codes + 1.0])
    found = pairwise_mmd(domains, WIDTHS)
    torch.testing.assert_close(found, found.mT)
    assert found.diagonal().abs().max() < 1e-14
    assert found[0, 1].abs() < 1e-14
    assert found[0, 2] > 1e-2
    assert pairwise_mmd(drawn(5, 9, 3), WIDTHS).min() > -1e-14


def test_under_a_wide_kernel_it_is_the_distance_of_the_means() -> None:
    codes = torch.stack([drawn(30, 4), drawn(30, 4, seed=1) + 1.0])
    means = codes.mean(dim=1)
    found = pairwise_mmd(codes, (1e6,), unit=1.0)[0, 1] * 1e6
    torch.testing.assert_close(found, (means[0] - means[1]).square().sum(), rtol=1e-3, atol=0)


def test_widths_go_with_the_codes_unless_a_unit_is_given() -> None:
    codes = drawn(3, 10, 4)
    torch.testing.assert_close(pairwise_mmd(codes, WIDTHS), pairwise_mmd(100.0 * codes, WIDTHS))
    unit = torch.cdist(codes.flatten(0, 1), codes.flatten(0, 1)).square().mean()
    torch.testing.assert_close(pairwise_mmd(codes, WIDTHS), pairwise_mmd(codes, WIDTHS, unit))
    assert pairwise_mmd(100.0 * codes, WIDTHS, unit).max() != pairwise_mmd(codes, WIDTHS, unit).max()


def test_the_gradient_is_that_of_finite_differences_with_the_unit_held() -> None:
    codes = drawn(2, 4, 3).requires_grad_()
    unit = squared_distances(codes.flatten(0, 1), codes.flatten(0, 1)).mean().detach()
    assert torch.autograd.gradcheck(lambda given: pairwise_mmd(given, WIDTHS, unit), codes)
    held, own = (torch.autograd.grad(pairwise_mmd(codes, WIDTHS, u).sum(), codes)[0] for u in (unit, None))
    torch.testing.assert_close(held, own)


def test_codes_that_are_all_the_same_are_no_distance_apart() -> None:
    codes = torch.ones(2, 3, 4, requires_grad=True)
    found = pairwise_mmd(codes, WIDTHS)
    found.sum().backward()
    assert found.abs().max() == 0
    assert codes.grad is not None
    assert codes.grad.isfinite().all()
