from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torchvision import models

from metavib.algorithms.erm import ERM
from metavib.core.errors import UserError
from metavib.models.directory import build_algorithm
from metavib.nn import kernels
from metavib.nn.backbone import Backbone, drop
from metavib.nn.backbones import (
    BACKBONES,
    DigitNetwork,
    DomainBedDigits,
    PaperAlexNet,
    SqueezeNet,
)
from metavib.nn.kernels.fused_activation import activated
from metavib.nn.networks import build_backbone
from metavib.nn.pure_normalisation import FrozenBatchNorm
from metavib.nn.resnet import ResNet18

FROZEN = "frozen"  # as with pre-trained weights: a ResNet's statistics are constants
ALL = [(name, "none") for name in BACKBONES] + [
    ("resnet18", FROZEN),
    ("resnet50", FROZEN),
    ("resnet50-v1", FROZEN),
]


@cache  # the large ones take a second to initialise
def built(name: str, weights: str = "none", seed: int = 0) -> Backbone:
    torch.manual_seed(seed)
    backbone = BACKBONES[name]()
    if weights == FROZEN:
        backbone.freeze_normalisation()
    return backbone


def inputs(backbone: Backbone, batch: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (batch, backbone.channels, backbone.image_size, backbone.image_size)
    noise = torch.randn(batch, sum(backbone.dropout_units), generator=generator)
    return torch.rand(shape, generator=generator), noise


def parameter_count(backbone: nn.Module) -> int:
    return sum(parameter.numel() for parameter in backbone.parameters())


def output_shapes(layers: nn.Sequential, images: Tensor) -> dict[int, tuple[int, ...]]:
    shapes = {}
    for index, layer in enumerate(layers):
        images = layer(images)
        shapes[index] = tuple(images.shape[1:])
    return shapes


@pytest.mark.parametrize(("name", "weights"), ALL)
def test_features_have_the_promised_size_and_the_network_stays_as_it_was(name: str, weights: str) -> None:
    backbone = built(name, weights)
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    images, noise = inputs(backbone)
    with torch.no_grad():
        first, second = backbone(images, noise), backbone(images, noise)
        alone = backbone(images[:1], noise[:1])
    assert first.shape == (2, backbone.feature_size)
    assert first.dtype == torch.float32
    assert first.isfinite().all()
    assert first.std() > 0
    assert torch.equal(first, second)
    torch.testing.assert_close(first[:1], alone)  # no image sees the others of its batch
    assert len(backbone.normalisation.mean) == len(backbone.normalisation.std) == backbone.channels
    for key, value in backbone.state_dict().items():
        assert torch.equal(value, before[key]), key


@pytest.mark.parametrize("name", BACKBONES)
def test_no_layer_keeps_a_state_or_draws(name: str) -> None:
    stateful = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    for weights in ("none", FROZEN):
        assert not any(isinstance(module, stateful) for module in built(name, weights).modules())


def test_sizes_of_the_digit_table() -> None:
    backbone = built("digits")
    assert isinstance(backbone, DigitNetwork)
    layers = nn.Sequential(
        backbone.convolution_1,
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        backbone.convolution_2,
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
    )
    images, _ = inputs(backbone)
    shapes = output_shapes(layers, images)
    assert shapes[0] == (32, 28, 28)
    assert shapes[2] == (32, 14, 14)
    assert shapes[5] == (32, 7, 7)
    torch.testing.assert_close(backbone(images), backbone.connected(layers(images).flatten(1)).relu())


def test_sizes_of_the_image_table() -> None:
    backbone = built("alexnet-paper")
    assert isinstance(backbone, PaperAlexNet)
    with torch.no_grad():
        shapes = output_shapes(backbone.convolutions, inputs(backbone, batch=1)[0])
    assert shapes[0] == (96, 55, 55)
    assert shapes[2] == (96, 27, 27)
    assert shapes[5] == (256, 13, 13)
    assert shapes[7] == (384, 13, 13)
    assert shapes[9] == (384, 13, 13)
    assert shapes[12] == (256, 6, 6)


def test_sizes_of_domainbeds_network() -> None:
    backbone = built("digits-domainbed")
    assert isinstance(backbone, DomainBedDigits)
    shapes = output_shapes(backbone.convolutions, inputs(backbone)[0])
    assert [shapes[index] for index in (2, 5, 8, 11)] == [(64, 28, 28), *[(128, 14, 14)] * 3]


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("digits", (9 + 1) * 32 + (9 * 32 + 1) * 32 + (7 * 7 * 32 + 1) * 256),
        (
            "digits-domainbed",
            (9 + 1) * 64 + (9 * 64 + 1) * 128 + 2 * (9 * 128 + 1) * 128 + 2 * (64 + 3 * 128),
        ),
        (
            "alexnet-paper",
            (3 * 121 + 1) * 96
            + (96 * 25 + 1) * 256
            + (256 * 9 + 1) * 384
            + (384 * 9 + 1) * 384
            + (384 * 9 + 1) * 256
            + (6 * 6 * 256 + 1) * 4096
            + (4096 + 1) * 4096,
        ),
        # torchvision's published counts, less the heads
        ("alexnet", 61_100_840 - (4096 + 1) * 1000),
        ("squeezenet", 1_248_424 - (512 + 1) * 1000),
        ("resnet18", 11_689_512 - (512 + 1) * 1000),
        ("resnet50", 25_557_032 - (2048 + 1) * 1000),
        ("resnet50-v1", 25_557_032 - (2048 + 1) * 1000),
    ],
)
def test_parameter_counts(name: str, count: int) -> None:
    assert parameter_count(built(name)) == count
    assert parameter_count(built(name, FROZEN)) == count


@pytest.mark.stacks
@pytest.mark.parametrize(
    ("name", "weights"),
    # The other two have the same layers; their stacks would only cost time.
    [pair for pair in ALL if pair[0] not in ("alexnet", "resnet50", "resnet50-v1")],
)
def test_stacked_networks_equal_the_networks_one_by_one(name: str, weights: str) -> None:
    # float64 shows that only rounding differs; the large network stays in float32 to save memory.
    dtype, tolerance = (torch.float32, 1e-3) if name == "alexnet-paper" else (torch.float64, 1e-9)
    networks = [deepcopy(built(name, weights, seed)).to(dtype) for seed in (0, 1)]
    parameters, buffers = stack_module_state(networks)  # type: ignore[arg-type]
    images, noise = inputs(networks[0], batch=1)
    images = images.to(dtype)

    def objective(own: dict[str, Tensor], statistics: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        features = functional_call(networks[0], (own, statistics), (images, noise))
        return features.square().sum(), features

    gradients, features = vmap(grad(objective, has_aux=True))(parameters, buffers)
    for index, network in enumerate(networks):
        expected = network(images, noise)
        torch.testing.assert_close(features[index], expected)
        first_key, first = next(network.named_parameters())
        (gradient,) = torch.autograd.grad(expected.square().sum(), first)
        error = (gradients[first_key][index] - gradient).abs().max() / gradient.abs().max()
        assert error < tolerance


def test_gradient_of_the_digit_network_in_float64() -> None:
    torch.manual_seed(0)
    backbone = DigitNetwork().double()
    images = torch.rand(2, 1, 28, 28, dtype=torch.float64)
    weight = torch.randn(32, 1, 3, 3, dtype=torch.float64, requires_grad=True)
    probe = torch.randn(256, dtype=torch.float64)

    def objective(kernel: Tensor) -> Tensor:
        return functional_call(backbone, {"convolution_1.weight": kernel}, (images,)) @ probe

    assert backbone(images).dtype == torch.float64
    assert torch.autograd.gradcheck(objective, (weight,), fast_mode=True)


def test_dropout_keeps_positive_draws_and_doubles_them() -> None:
    backbone = built("alexnet-paper")
    assert isinstance(backbone, PaperAlexNet)
    images, noise = inputs(backbone, batch=2)
    with torch.no_grad():
        hidden = backbone.connected_6(backbone.convolutions(images).flatten(1)).relu()
        kept = backbone.connected_7(torch.where(noise > 0, 2 * hidden, torch.zeros(()))).relu()
        torch.testing.assert_close(backbone(images, noise), kept)
        torch.testing.assert_close(
            backbone(images, noise.abs() + 1e-3), backbone.connected_7(2 * hidden).relu()
        )
        torch.testing.assert_close(backbone(images), backbone.connected_7(hidden).relu())


def test_dropout_of_torchvisions_alexnet() -> None:
    """With torchvision's own dropout layers replaced by the same masks the features are the same."""
    backbone = built("alexnet")
    whole = models.alexnet(weights=None).eval()
    assert whole.load_state_dict(backbone.state_dict(), strict=False).unexpected_keys == []
    images, noise = inputs(backbone, batch=1)
    first, second = noise.split(backbone.dropout_units, dim=1)
    masks = {0: 2.0 * (first > 0), 3: 2.0 * (second > 0)}
    with torch.no_grad():
        units = whole.avgpool(whole.features(images)).flatten(1)
        for index in range(6):
            units = units * masks[index] if index in masks else whole.classifier[index](units)
        torch.testing.assert_close(backbone(images, noise), units)
        evaluated = whole.classifier[:6](whole.avgpool(whole.features(images)).flatten(1))
        torch.testing.assert_close(backbone(images), evaluated)


class LinearProbe(Backbone):
    """A linear network, where the mean over the dropout masks is the evaluation exactly."""

    dropout_units = (3, 5)

    def extract(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Tensor:
        first, second = masks
        units = images.flatten(1)
        return torch.cat([drop(units[:, :3], first), drop(units[:, 3:], second)], dim=1)


def test_dropout_leaves_the_mean_unchanged() -> None:
    probe, draws = LinearProbe(), 20_000
    images = torch.arange(1.0, 9.0).reshape(1, 1, 2, 4)
    noise = torch.randn(draws, 8, generator=torch.Generator().manual_seed(0))
    dropped = probe(images.expand(draws, -1, -1, -1), noise)
    # Each unit is x times 0 or 2: deviation x, so four standard errors are 4 x / sqrt(draws).
    error = (dropped.mean(0) - probe(images)[0]).abs() / images.flatten()
    assert error.max() < 4 / draws**0.5
    assert set((dropped / images.flatten()).unique().tolist()) == {0.0, 2.0}


def test_precision_is_used_inside_and_float32_comes_out() -> None:
    seen = []

    class Convolution(Backbone):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(1, 8, 3)

        def extract(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Tensor:
            maps = self.layer(images)
            seen.append(maps.dtype)
            return maps.flatten(1)

    backbone, images = Convolution(), torch.rand(2, 1, 6, 6)
    exact = backbone(images)
    backbone.precision = torch.bfloat16
    rounded = backbone(images)
    assert seen == [torch.float32, torch.bfloat16]
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, rtol=0.05, atol=0.05)
    assert not torch.equal(rounded, exact)


def test_frozen_batch_norm_is_torchs_in_evaluation() -> None:
    torch.manual_seed(0)
    reference, frozen = nn.BatchNorm2d(6).eval(), FrozenBatchNorm(6)
    for tensor in reference.state_dict().values():
        if tensor.is_floating_point():
            tensor.uniform_(0.5, 2.0)
    frozen.load_state_dict({k: v for k, v in reference.state_dict().items() if "num_batches" not in k})
    maps = torch.randn(2, 6, 3, 3)
    torch.testing.assert_close(frozen(maps), reference(maps))
    assert frozen(maps.bfloat16()).dtype == torch.bfloat16
    frozen(maps).sum().backward()
    assert frozen.weight.grad is not None
    assert frozen.bias.grad is not None


def test_resnet_normalises_by_groups_from_scratch_and_by_constants_with_weights() -> None:
    def normalisers(backbone: Backbone) -> set[type]:
        kinds = (nn.GroupNorm, FrozenBatchNorm)
        return {type(module) for module in backbone.modules() if isinstance(module, kinds)}

    assert normalisers(built("resnet18")) == {nn.GroupNorm}
    assert normalisers(built("resnet18", FROZEN)) == {FrozenBatchNorm}


def test_frozen_resnet_equals_torchvisions_in_evaluation() -> None:
    torch.manual_seed(0)
    whole = models.resnet18(weights=None).eval()
    for key, tensor in whole.state_dict().items():
        if "running" in key:
            tensor.uniform_(0.5, 1.5)
    backbone = ResNet18()
    backbone.freeze_normalisation()
    left_over = backbone.load_state_dict(whole.state_dict(), strict=False)
    assert left_over.missing_keys == []
    assert {key for key in left_over.unexpected_keys if not key.endswith("num_batches_tracked")} == {
        "fc.weight",
        "fc.bias",
    }
    whole.fc = nn.Identity()
    images, _ = inputs(backbone)
    with torch.no_grad():
        expected = whole(images)
        torch.testing.assert_close(backbone(images), expected)
        assert backbone.train()(images).equal(backbone.eval()(images))


def test_seed_decides_the_initialisation() -> None:
    def first_weight(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return next(build_backbone("digits").parameters())

    assert torch.equal(first_weight(0), first_weight(0))
    assert not torch.equal(first_weight(0), first_weight(1))


def test_the_digit_network_drawn_as_torch_does_has_the_weights_of_torchs_own_layers() -> None:
    backbone = DigitNetwork()
    torch.manual_seed(0)
    backbone.initialise_as_torch_does()
    torch.manual_seed(0)
    layers = nn.ModuleDict(
        {
            "convolution_1": nn.Conv2d(1, 32, 3),
            "convolution_2": nn.Conv2d(32, 32, 3),
            "connected": nn.Linear(7 * 7 * 32, 256),
        }
    )
    drawn, expected = backbone.state_dict(), layers.state_dict()
    assert drawn.keys() == expected.keys()
    assert all(torch.equal(drawn[key], expected[key]) for key in expected)


@pytest.mark.parametrize("name", ["digits", "digits-domainbed", "squeezenet", "resnet18"])
def test_drawing_as_torch_does_draws_every_layer_and_leaves_the_normalisation(name: str) -> None:
    backbone = deepcopy(built(name))
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    backbone.initialise_as_torch_does()
    normalisers = {key for key, module in backbone.named_modules() if isinstance(module, nn.GroupNorm)}
    for key, value in backbone.state_dict().items():
        assert torch.equal(value, before[key]) == (key.rpartition(".")[0] in normalisers), key


@pytest.mark.parametrize("initialisation", ["network", "torch"])
def test_the_first_weights_of_a_run_are_those_it_asks_for(initialisation: str) -> None:
    algorithm = build_algorithm("erm", ERM.Config(), "digits", "none", 3, 0, initialisation)
    again = build_algorithm("erm", ERM.Config(), "digits", "none", 3, 0, initialisation)
    assert all(torch.equal(*pair) for pair in zip(algorithm.parameters(), again.parameters(), strict=True))
    # He's biases are zero, and torch's are not.
    assert bool(algorithm.backbone.connected.bias.any()) == (initialisation == "torch")


def test_given_weights_are_not_drawn_again(tmp_path: Path) -> None:
    given = built("digits", seed=3)
    save_file(given.state_dict(), tmp_path / "digits.safetensors")
    algorithm = build_algorithm(
        "erm", ERM.Config(), "digits", str(tmp_path / "digits.safetensors"), 3, 0, "torch"
    )
    for key, value in algorithm.backbone.state_dict().items():
        assert torch.equal(value, given.state_dict()[key])


def test_only_the_digit_network_is_too_small_for_a_gpu() -> None:
    assert [name for name, kind in BACKBONES.items() if kind.small] == ["digits"]


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"unknown backbone 'alexnett'; did you mean 'alexnet'\?"):
        build_backbone("alexnett")


def test_squeezenet_in_fewer_passes_is_squeezenet(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    backbone = build_backbone("squeezenet").double()
    assert isinstance(backbone, SqueezeNet)
    images = torch.randn(2, 3, 96, 96, dtype=torch.float64)
    usual = backbone.at_stages(images)
    monkeypatch.setattr(kernels, "run_on", lambda device: True)  # which leave float64 to torch
    for own, expected in zip(backbone.at_stages(images), usual, strict=True):
        torch.testing.assert_close(own, expected)
    torch.testing.assert_close(usual[-1], backbone.features(images).mean((2, 3)))


def test_squeezenet_in_fewer_passes_can_be_differentiated_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    backbone = build_backbone("squeezenet").double()
    backbone.twice_differentiable = True
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    leaves = list(backbone.parameters())

    def second() -> tuple[Tensor, ...]:
        first = torch.autograd.grad(backbone(images).square().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(own.square().sum() for own in first), leaves)

    usual = second()
    passes = Mock(side_effect=activated)
    monkeypatch.setattr("metavib.nn.backbones.activated", passes)
    monkeypatch.setattr(kernels, "run_on", lambda device: True)
    for own, expected in zip(second(), usual, strict=True):
        torch.testing.assert_close(own, expected)
    assert passes.call_count == 17  # the first convolution, and twice in each of eight fire modules


@pytest.mark.parametrize("name", BACKBONES)
def test_stages_have_the_promised_sizes_and_end_with_the_features(name: str) -> None:
    backbone = built(name)
    images, noise = inputs(backbone, batch=2)
    with torch.no_grad():
        *stages, features = backbone.at_stages(images, noise)
        assert torch.equal(features, backbone(images, noise))
    assert tuple(stage.shape[1] for stage in stages) == backbone.stage_sizes
    assert len(stages) >= 2
    sides = [stage.shape[-1] for stage in stages if stage.ndim == 4]
    assert sides == sorted(sides, reverse=True)
    assert all(stage.dtype == torch.float32 and stage.std() > 0 for stage in stages)


def test_a_network_that_says_nothing_about_its_stages_hands_out_its_features() -> None:
    probe, images = LinearProbe(), torch.arange(1.0, 9.0).reshape(1, 1, 2, 4)
    (features,) = probe.at_stages(images)
    assert torch.equal(features, probe(images))
    assert probe.stage_sizes == ()
