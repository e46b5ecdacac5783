"""Layers of networks from elsewhere are replaced by pure ones."""

from __future__ import annotations

import pytest
import torch
from small_networks import Plain
from torch import nn

from metavib.core.errors import UserError
from metavib.nn.pure_normalisation import FrozenBatchNorm, GroupedNorm
from metavib.nn.purity import freeze, has_statistics, is_frozen, make_pure

timm = pytest.importorskip("timm")


def with_statistics(network: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for layer in network.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            for values in (layer.running_mean, layer.running_var, layer.weight.data, layer.bias.data):
                values.uniform_(0.5, 1.5)
    return network


def test_statistics_of_a_training_are_kept() -> None:
    network = with_statistics(Plain()).eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = network(images)
    assert has_statistics(network)
    pure = make_pure(network)
    assert isinstance(pure.normalised, FrozenBatchNorm)
    assert is_frozen(pure)
    assert pure.dropout.p == 0
    assert not pure.activation.inplace
    with torch.no_grad():
        torch.testing.assert_close(pure.train()(images), expected)


def test_without_a_training_images_are_normalised_by_groups_until_weights_bring_statistics() -> None:
    network = Plain()
    network.normalised.weight.data.fill_(0.25)
    pure = make_pure(network)
    assert isinstance(pure.normalised, GroupedNorm)
    assert not is_frozen(pure)
    assert (pure.normalised.weight == 0.25).all()
    frozen = freeze(pure)
    assert isinstance(frozen.normalised, FrozenBatchNorm)
    expected = {key for key in Plain().state_dict() if "num_batches" not in key}
    assert frozen.state_dict().keys() == expected


def test_timms_layer_keeps_its_activation_and_its_eps() -> None:
    layer = with_statistics(timm.layers.BatchNormAct2d(8, eps=0.01, act_layer=nn.ReLU6)).eval()
    maps = 9 * torch.randn(2, 8, 4, 4)
    with torch.no_grad():
        expected = layer(maps)
        torch.testing.assert_close(make_pure(layer)(maps), expected)
    assert expected.max() == 6
    fresh = freeze(make_pure(timm.layers.BatchNormAct2d(8, eps=0.01, act_layer=nn.ReLU6)))
    assert isinstance(fresh, FrozenBatchNorm)
    assert fresh.eps == 0.01
    assert isinstance(fresh.act, nn.ReLU6)


@pytest.mark.parametrize("shape", [(3, 16), (3, 16, 5), (3, 16, 4, 4)])
def test_normalisation_of_rows_of_sequences_and_of_maps(shape: tuple[int, ...]) -> None:
    layer = with_statistics({2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)](16)).eval()
    values = torch.randn(shape)
    with torch.no_grad():
        expected = layer(values)
        torch.testing.assert_close(make_pure(layer)(values), expected)


@pytest.mark.parametrize(("channels", "groups"), [(1, 1), (8, 1), (24, 3), (40, 5), (512, 32), (7, 1)])
def test_a_group_has_several_channels(channels: int, groups: int) -> None:
    layer = GroupedNorm(channels)
    assert layer.num_groups == groups
    if channels > 1:  # of a map of one pixel too, something is left
        assert layer(torch.randn(2, channels, 1, 1)).abs().max() > 0


def test_what_is_not_trained_is_a_constant() -> None:
    network = Plain()
    network.last.weight.requires_grad_(False)
    pure = make_pure(network)
    assert "last.weight" not in dict(pure.named_parameters())
    assert "last.weight" in dict(pure.named_buffers())
    assert pure.state_dict().keys() >= {"last.weight", "last.bias"}


def test_stochastic_depth_is_off() -> None:
    drop = make_pure(timm.layers.DropPath(0.3)).train()
    assert torch.equal(drop(torch.ones(4, 3)), torch.ones(4, 3))


def test_a_layer_without_statistics_is_refused_by_name() -> None:
    network = Plain()
    network.normalised = nn.BatchNorm2d(16, track_running_stats=False)
    with pytest.raises(UserError, match=r"normalised \(BatchNorm2d\) normalises by the images of a batch"):
        make_pure(network)


def test_a_normalisation_of_another_kind_is_refused_by_name() -> None:
    class Mine(nn.BatchNorm2d):
        def forward(self, maps: torch.Tensor) -> torch.Tensor:
            return maps

    network = Plain()
    network.normalised = Mine(16)
    with pytest.raises(UserError, match="normalised is a Mine, a batch normalisation of its own kind"):
        make_pure(network)
