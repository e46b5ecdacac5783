"""The backbone of features: what it standardises by, and that the model keeps it."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, vmap

from metavib.nn.mlp import MLP


@pytest.fixture
def network() -> MLP:
    torch.manual_seed(0)
    return MLP(3, 8)


def as_images(features: torch.Tensor) -> torch.Tensor:
    return features[:, :, None, None]


def test_inputs_are_standardised_by_mean_and_deviation(network: MLP) -> None:
    network.standardise_by(torch.tensor([[1.0, 10.0, 5.0], [3.0, 30.0, 5.0]], dtype=torch.float64))
    assert network.centre.tolist() == [2.0, 20.0, 5.0]
    assert network.scale.tolist() == [1.0, 10.0, 1.0]  # a constant feature is centred only
    given = torch.tensor([[2.0, 20.0, 5.0]], dtype=torch.float64)
    with torch.no_grad():
        hidden = network.hidden_2(torch.relu(network.hidden_1.bias)).relu()
    assert torch.equal(network(as_images(given))[0], hidden)  # the mean itself is the origin


def test_a_feature_that_is_constant_but_for_rounding_is_not_blown_up(network: MLP) -> None:
    features = torch.full((1000, 3), 0.1, dtype=torch.float64)
    network.standardise_by(features)
    assert network.scale.tolist() == [1.0, 1.0, 1.0]
    assert network(as_images(features + 0.1)).abs().max() < 10


def test_features_are_the_same_in_any_unit_and_from_any_origin(network: MLP) -> None:
    features = torch.randn(50, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    network.standardise_by(features)
    usual = network(as_images(features))
    moved = features * torch.tensor([1e-3, 1.0, 1e4]) + torch.tensor([1e6, -1e9, 0.0], dtype=torch.float64)
    network.standardise_by(moved)
    assert usual.dtype == torch.float32
    # In float32 all of the second feature would be -1e9.
    assert torch.allclose(network(as_images(moved)), usual, atol=1e-4)
    assert (usual.std(dim=0) > 0.1).any()


def test_the_model_keeps_what_it_standardises_by(network: MLP) -> None:
    features = 5 + 3 * torch.randn(20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    network.standardise_by(features)
    other = MLP(3, 8)
    assert not torch.allclose(other(as_images(features)), network(as_images(features)))
    other.load_state_dict(network.state_dict())
    assert torch.equal(other(as_images(features)), network(as_images(features)))


def test_a_network_in_float64_computes_in_it(network: MLP) -> None:
    features = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    single = network(as_images(features))
    exact = network.double()(as_images(features))
    assert exact.dtype == torch.float64
    assert torch.allclose(exact, single.double(), atol=1e-5)
    assert not torch.equal(exact.float().double(), exact)


def test_the_hidden_units_are_handed_out_too(network: MLP) -> None:
    images = as_images(torch.arange(6.0).view(2, 3))
    hidden, features = network.at_stages(images)
    assert network.stage_sizes == (hidden.shape[1],)
    assert torch.equal(hidden, network.hidden_1(network.standardised(images)).relu())
    assert torch.equal(features, network(images))


def test_runs_can_be_stacked(network: MLP) -> None:
    others = [network, MLP(3, 8)]
    others[1].standardise_by(torch.arange(12.0).view(4, 3))
    names = dict(network.named_parameters()) | dict(network.named_buffers())
    stacked = {name: torch.stack([own.state_dict()[name] for own in others]) for name in names}
    images = as_images(torch.arange(6.0).view(2, 3))
    together = vmap(lambda state: functional_call(network, state, (images,)))(stacked)
    for own, features in zip(others, together, strict=True):
        assert torch.allclose(own(images), features, atol=1e-6)


@pytest.mark.parametrize("size", [1e300, 1e-300, 1e200, 1.0])
def test_features_of_any_size_are_told_apart(size):
    mlp = MLP(2, 8)
    features = torch.tensor([[1.0, 2.0], [-1.0, 3.0], [0.5, -2.0]], dtype=torch.float64) * size
    mlp.standardise_by(features)
    standard = mlp.standardised(features.view(3, 2, 1, 1))
    torch.testing.assert_close(standard.mean(dim=0), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(standard.std(dim=0, correction=0), torch.ones(2))
