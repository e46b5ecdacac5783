from __future__ import annotations

import pytest
import torch
from torch import nn

from metavib.nn.functional.gaussian import Gaussian
from metavib.nn.inference import InferenceNetwork


def network(width: int = 16, initial_log_variance: float = 0.0, seed: int = 0) -> InferenceNetwork:
    torch.manual_seed(seed)
    return InferenceNetwork(8, width, initial_log_variance)


@pytest.mark.parametrize("width", [256, 1024])
def test_it_has_the_three_layers_of_the_supplement(width: int) -> None:
    shapes = [tuple(m.weight.shape) for m in network(width).modules() if isinstance(m, nn.Linear)]
    assert shapes == [(width, 8), (width, width), (2 * width, width)]


def test_it_gives_a_gaussian_for_each_feature_whatever_the_batch() -> None:
    inferred = network()(torch.randn(4, 3, 8))
    assert isinstance(inferred, Gaussian)
    assert inferred.mean.shape == inferred.log_variance.shape == (4, 3, 16)


def test_the_layers_have_elu_between_them_and_none_at_the_end() -> None:
    g, features = network(), torch.randn(5, 8)
    first, second, inferred = g.layers(features)
    torch.testing.assert_close(first, nn.functional.elu(features @ g.hidden_1.weight.T + g.hidden_1.bias))
    torch.testing.assert_close(second, nn.functional.elu(first @ g.hidden_2.weight.T + g.hidden_2.bias))
    last = second @ g.output.weight.T + g.output.bias
    torch.testing.assert_close(torch.cat(inferred, dim=-1), last)
    assert torch.equal(g(features).mean, inferred.mean)


@pytest.mark.parametrize("initial", [-5.0, 0.0, 2.0])
def test_the_log_variance_begins_at_the_setting(initial: float) -> None:
    g = network(256, initial)
    assert torch.equal(g(torch.zeros(1, 8)).log_variance, torch.full((1, 256), initial))
    features = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    assert g(features).log_variance.mean().item() == pytest.approx(initial, abs=0.2)
    assert g(features).mean.mean().item() == pytest.approx(0, abs=0.2)


def test_the_log_variance_is_clamped_at_ten_on_both_sides_and_the_mean_is_not() -> None:
    inferred = network()(1000 * torch.randn(20, 8, generator=torch.Generator().manual_seed(0)))
    assert inferred.log_variance.min().item() == -10
    assert inferred.log_variance.max().item() == 10
    assert inferred.mean.abs().max() > 100


def test_differences_between_features_survive_the_first_weights() -> None:
    features = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    means = network(256)(features).mean
    assert means.std(dim=0).mean() > 0.5  # torch's own initialisation leaves 0.13
