"""Each kernel against its twin in torch operators: on a GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional

from metavib.data.transforms import DRAWS_PER_IMAGE, Augmentation, Preprocessing, prepare
from metavib.nn import kernels
from metavib.nn.kernels.fused_activation import activated
from metavib.nn.kernels.pooled_convolution import pooled_convolution
from metavib.nn.randomness import key_of, normal
from metavib.training.optimizer import Optimizer, Training

pytestmark = pytest.mark.kernels

triton = pytest.importorskip(
    "triton", reason="Triton cannot be imported: the kernels are not tested", exc_type=ImportError
)
ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
RUNS, IMAGES = 2, 2


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Import the kernels, without a GPU for the interpreter. It is wrong in bfloat16: all is float32."""
    # Triton reads a kernel's source: it cannot see through the wrapper that checks shapes.
    finders = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("jaxtyping")]
    monkeypatch.setattr(sys, "meta_path", finders)
    if not ON_GPU:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        for name, function in list(vars(triton.language).items()):
            if isinstance(function, triton.JITFunction):  # torchvision has imported Triton before us
                monkeypatch.setattr(triton.language, name, triton.jit(function.fn))
    modules = [
        importlib.import_module(f"metavib.nn.kernels.{name}")
        for name in ("convolution", "pooling", "adam", "randomness", "images", "activation")
    ]
    monkeypatch.setattr(modules[0], "_shares", lambda runs: 2)
    # Few rows a program and few programs, so that a small example has several of both.
    monkeypatch.setattr(modules[-1], "_ELEMENTS", 64)
    monkeypatch.setattr(modules[-1], "_SHARES", 3)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def assert_close(found: Tensor, expected: Tensor, within: float = 1e-5) -> None:
    """The twin computes in float64; what is found may differ by float32's rounding."""
    scale = expected.abs().max().clamp_min(1.0).item()
    torch.testing.assert_close(found.double().cpu(), expected.double().cpu(), rtol=0, atol=within * scale)


def channels_last(images: Tensor) -> Tensor:
    """[runs, images, channels, side, side] as the kernels have it, channels last."""
    return images.permute(0, 1, 3, 4, 2).contiguous()


def differentiated(
    twin: Callable[..., Tensor], parts: tuple[Tensor, ...], gradient: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """What a twin that knows no runs gives for each, and the gradients of its parts: in float64, on the CPU."""
    leaves = [part.detach().cpu().double().requires_grad_() for part in parts]
    values = torch.stack([twin(*own) for own in zip(*leaves, strict=True)])
    return values.detach(), torch.autograd.grad(values, leaves, gradient.cpu().double())


def convolved(images: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return functional.conv2d(images, weight, bias, padding=1)


def pooled(images: Tensor) -> Tensor:
    return functional.max_pool2d(images, 3, stride=2, padding=1).relu()


def layer(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return pooled(convolved(images, weight, bias))


# --- normal draws -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 7, 1024, 1027])
def test_normal_draws_are_those_that_randomness_defines(count: int) -> None:
    from metavib.nn.kernels import randomness

    keys = torch.tensor([key_of(seed, "noise") for seed in range(3)] + [0, -1])
    found = randomness.normal(keys.to(DEVICE), count)
    torch.testing.assert_close(found.cpu(), normal(keys, (count,)), rtol=0, atol=1e-5)


def test_normal_takes_the_kernel_for_keys_and_shapes_of_any_form(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = torch.tensor([[1, 2], [-3, 4]])
    expected = [normal(keys, (3, 5)), normal(keys[0, 0], (2, 2))]
    monkeypatch.setattr(kernels, "run_on", lambda device: True)
    found = [normal(keys.to(DEVICE), (3, 5)), normal(keys[0, 0].to(DEVICE), (2, 2))]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=0, atol=1e-5)


# --- Adam -------------------------------------------------------------------------------------------------


def test_a_step_of_adam_is_that_of_torch_for_each_run() -> None:
    from metavib.nn.kernels.adam import adam

    stacked, rates = drawn(RUNS, 3, 700), torch.tensor([1e-2, 1e-3])
    twins = [torch.nn.Parameter(own.cpu().double()) for own in stacked]
    theirs = [
        torch.optim.Adam([twin], lr=rate, weight_decay=0.1)
        for twin, rate in zip(twins, rates.tolist(), strict=True)
    ]
    moments = [torch.zeros_like(stacked) for _ in range(2)]
    for step in range(3):
        gradient = drawn(RUNS, 3, 700, seed=step + 1)
        adam(
            stacked,
            gradient,
            *moments,
            rates=rates.to(DEVICE),
            scales=torch.tensor([1.0, 4.0], device=DEVICE),  # the gradient is divided by them
            held=torch.zeros(RUNS, device=DEVICE),
            step=torch.tensor(step, device=DEVICE),
            weight_decay=0.1,
            betas=(0.9, 0.999),
            epsilon=1e-8,
        )
        for twin, optimizer, own, scale in zip(twins, theirs, gradient, (1.0, 4.0), strict=True):
            twin.grad = own.cpu().double() / scale
            optimizer.step()
        for own, twin in zip(stacked, twins, strict=True):
            assert_close(own, twin.detach(), within=1e-6)


def optimized(serve: bool, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """Three runs after four steps: clipped or not, the last one held from its second step."""
    monkeypatch.setattr(kernels, "run_on", lambda device: serve)
    device = DEVICE if serve else torch.device("cpu")
    shapes = {"backbone.weight": (3, 4, 2, 3, 3), "classifier.bias": (3, 5)}
    parameters = {name: drawn(*shape, seed=9).to(device) for name, shape in shapes.items()}
    # As the parameters of a network lie that is trained alone in channels last.
    parameters["backbone.weight"] = (
        parameters["backbone.weight"].permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    )
    settings = [
        Training(steps=4, learning_rate=rate, clip_norm=clip, backbone_rate=share, weight_decay=0.1)
        for rate, clip, share in ((1e-2, 0.0, 1.0), (1e-3, 0.5, 0.25), (1e-1, 100.0, 0.0))
    ]
    optimizer = Optimizer(parameters, {"backbone.weight"}, settings)
    for step in range(4):
        gradients = {name: drawn(*shape, seed=step).to(device) for name, shape in shapes.items()}
        optimizer.step(torch.tensor(step, device=device), torch.ones(3, 1, device=device), gradients)
        if step == 0:
            optimizer.hold(2)
    return parameters | optimizer.state()


def test_the_optimizer_moves_all_runs_alike_with_the_kernel_and_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by_kernel, plain = optimized(True, monkeypatch), optimized(False, monkeypatch)
    for name, expected in plain.items():
        assert_close(by_kernel[name], expected, within=1e-6)


def test_a_run_that_is_held_keeps_every_bit_of_its_parameters_and_moments() -> None:
    from metavib.nn.kernels.adam import adam

    tensors = [drawn(RUNS, 40, seed=seed).abs() for seed in range(3)]
    before = [tensor.clone() for tensor in tensors]
    gradient = drawn(RUNS, 40)
    gradient[1] = torch.nan
    adam(
        tensors[0],
        gradient,
        *tensors[1:],
        rates=torch.ones(RUNS, device=DEVICE),
        scales=torch.ones(RUNS, device=DEVICE),
        held=torch.tensor([0.0, 1.0], device=DEVICE),
        step=torch.tensor(5, device=DEVICE),
        weight_decay=0.1,
        betas=(0.9, 0.999),
        epsilon=1e-8,
    )
    for tensor, old in zip(tensors, before, strict=True):
        assert torch.equal(tensor[1], old[1])
        assert (tensor[0] != old[0]).all()


# --- convolution and pooling ------------------------------------------------------------------------------


@pytest.mark.parametrize(("side", "inputs", "outputs"), [(8, 16, 32), (8, 32, 16), (14, 32, 32)])
def test_convolution_and_its_gradients(side: int, inputs: int, outputs: int) -> None:
    from metavib.nn.kernels import convolution

    images = drawn(RUNS, IMAGES, inputs, side, side)
    weights = drawn(RUNS, outputs, inputs, 3, 3, seed=1)
    bias = drawn(RUNS, outputs, seed=2)
    gradient = drawn(RUNS, IMAGES, outputs, side, side, seed=3)
    twin, (by_images, by_weights, _) = differentiated(convolved, (images, weights, bias), gradient)
    found = convolution.convolve(channels_last(images), weights, bias)
    assert_close(found, channels_last(twin))
    unbiased = convolution.convolve(channels_last(images), weights, None)
    assert_close(unbiased, channels_last(twin - bias.cpu()[:, None, :, None, None]))
    found = convolution.input_gradient(channels_last(gradient), weights)
    assert_close(found, channels_last(by_images))
    found = convolution.weight_gradient(channels_last(images), channels_last(gradient))
    assert_close(found, by_weights)


@pytest.mark.parametrize(("side", "channels"), [(8, 16), (14, 32), (28, 16)])
def test_pooling_and_its_gradient(side: int, channels: int) -> None:
    from metavib.nn.kernels import pooling

    images = drawn(RUNS, IMAGES, channels, side, side)
    gradient = drawn(RUNS, IMAGES, channels, side // 2, side // 2, seed=1)
    twin, (by_images,) = differentiated(pooled, (images,), gradient)
    found, places = pooling.pool(channels_last(images))
    assert_close(found, channels_last(twin), within=0)
    assert_close(pooling.pool_backward(places, channels_last(gradient)), channels_last(by_images))


@pytest.mark.parametrize(("side", "channels"), [(8, 16), (14, 32)])
def test_selecting_finds_what_was_pooled_and_is_the_transpose_of_putting_back(
    side: int, channels: int
) -> None:
    from metavib.nn.kernels import pooling

    images = channels_last(drawn(RUNS, IMAGES, channels, side, side))
    found, places = pooling.pool(images)
    assert (places == 9).any()  # some windows are cut off by the ReLU
    assert_close(pooling.select(places, images), found, within=0)
    other = channels_last(drawn(RUNS, IMAGES, channels, side, side, seed=1))
    gradient = drawn(*found.shape, seed=2)
    forward = (pooling.select(places, other) * gradient).sum()
    assert_close(forward, (pooling.pool_backward(places, gradient) * other).sum())


@pytest.mark.parametrize("value", [1.0, 0.0, -1.0])
def test_of_equal_values_the_same_one_gets_the_gradient_as_in_torch(value: float) -> None:
    from metavib.nn.kernels import pooling

    images = torch.full((1, 1, 16, 8, 8), value, device=DEVICE)
    gradient = drawn(1, 1, 16, 4, 4)
    twin, (by_images,) = differentiated(pooled, (images,), gradient)
    found, places = pooling.pool(channels_last(images))
    assert_close(found, channels_last(twin), within=0)
    assert_close(pooling.pool_backward(places, channels_last(gradient)), channels_last(by_images))


@pytest.mark.parametrize(("side", "channels"), [(8, 16), (14, 16), (28, 32)])
def test_the_first_layer_and_its_gradients(side: int, channels: int) -> None:
    from metavib.nn.kernels import convolution

    images, bias = drawn(RUNS, IMAGES, 1, side, side), drawn(RUNS, channels, seed=2)
    weights = drawn(RUNS, channels, 1, 3, 3, seed=1)
    gradient = drawn(RUNS, IMAGES, channels, side // 2, side // 2, seed=3)
    twin, (_, by_weights, by_bias) = differentiated(layer, (images, weights, bias), gradient)
    found, places = convolution.first_layer(images[:, :, 0].contiguous(), weights, bias)
    assert_close(found, channels_last(twin))
    found = convolution.first_layer_backward(images[:, :, 0].contiguous(), places, channels_last(gradient))
    assert_close(found[0], by_weights)
    assert_close(found[1], by_bias)


# --- the layer that is made of them -----------------------------------------------------------------------


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels are taken wherever the sizes allow."""
    monkeypatch.setattr(kernels, "run_on", lambda device: True)


def total(weight: Tensor, bias: Tensor, images: Tensor, gradient: Tensor) -> Tensor:
    return (pooled_convolution(images, weight, bias, torch.float32) * gradient).sum()


def example(inputs: int, *, runs: int = RUNS) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """Stacked images, weights and biases of the layer, and a gradient of what comes out."""
    parts = (
        drawn(runs, IMAGES, inputs, 8, 8),
        drawn(runs, 16, inputs, 3, 3, seed=1),
        drawn(runs, 16, seed=2),
    )
    return parts, drawn(runs, IMAGES, 16, 4, 4, seed=3)


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("inputs", [1, 16])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_layer_alone(inputs: int, memory_format: torch.memory_format) -> None:
    parts, gradient = example(inputs, runs=1)
    twin, expected = differentiated(layer, parts, gradient)
    images, weight, bias = (part[0].clone() for part in parts)
    images = images.to(memory_format=memory_format).requires_grad_(inputs > 1)
    weight = weight.to(memory_format=memory_format).requires_grad_()
    found = pooled_convolution(images, weight, bias.requires_grad_(), torch.float32)
    assert "PooledConvolution" in type(found.grad_fn).__name__
    found.backward(gradient[0])
    assert_close(found.detach(), twin[0])
    for own, other in zip((images, weight, bias), expected, strict=True):
        if own.requires_grad:
            assert_close(own.grad, other[0])


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("inputs", [1, 16])
def test_the_layer_under_grad_alone_and_stacked(inputs: int) -> None:
    (images, weights, biases), gradient = example(inputs)
    _, (_, *expected) = differentiated(layer, (images, weights, biases), gradient)
    alone = grad(total, (0, 1))(weights[1], biases[1], images[1], gradient[1])
    stacked = vmap(grad(total, (0, 1)))(weights, biases, images, gradient)
    for own, all_of_them, other in zip(alone, stacked, expected, strict=True):
        assert_close(own, other[1])
        assert_close(all_of_them, other)


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(
    ("inputs", "shared"),
    [(1, {"images"}), (16, {"weight"}), (16, {"bias"}), (16, {"images", "weight", "bias"})],
)
def test_what_stacked_runs_share_counts_for_each_of_them(inputs: int, shared: set[str]) -> None:
    parts, gradient = example(inputs)
    names = ("images", "weight", "bias")
    of_each = tuple(
        part[:1].expand_as(part) if name in shared else part for name, part in zip(names, parts, strict=True)
    )
    _, (_, *expected) = differentiated(layer, of_each, gradient)
    images, weight, bias = (
        part[0] if name in shared else part for name, part in zip(names, parts, strict=True)
    )
    dims = [None if name in shared else 0 for name in ("weight", "bias", "images")]
    found = vmap(grad(total, (0, 1)), (*dims, 0))(weight, bias, images, gradient)
    for own, other in zip(found, expected, strict=True):
        assert_close(own, other)


@pytest.mark.usefixtures("served")
def test_grey_images_that_want_a_gradient_get_the_right_one() -> None:
    parts, gradient = example(1)
    _, (expected, *_) = differentiated(layer, parts, gradient)
    images, weights, biases = parts
    wanted = images[0].clone().requires_grad_()
    total(weights[0], biases[0], wanted, gradient[0]).backward()
    assert_close(wanted.grad, expected[0])
    assert_close(grad(total, 2)(weights[0], biases[0], images[0], gradient[0]), expected[0])
    assert_close(vmap(grad(total, 2))(weights, biases, images, gradient), expected)


@pytest.mark.usefixtures("served")
def test_a_second_derivative_is_refused_in_words() -> None:
    parts, gradient = example(16)
    images, weight, bias = (part[0].clone().requires_grad_() for part in parts)
    (first,) = torch.autograd.grad(total(weight, bias, images, gradient[0]), weight, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        first.sum().backward()
    with pytest.raises(NotImplementedError, match="no second derivative"):
        grad(lambda own: grad(total)(own, bias, images, gradient[0]).sum())(weight)


def moved_loss(
    weight: Tensor, bias: Tensor, images: Tensor, gradient: Tensor, by: Callable[..., Tensor]
) -> Tensor:
    """A loss after an inner step, as meta-learning has it: its gradient has second derivatives."""

    def loss(weight: Tensor, bias: Tensor) -> Tensor:
        return (by(images, weight, bias).square() * gradient).sum()

    by_weight, by_bias = grad(loss, (0, 1))(weight, bias)
    return loss(weight - 0.01 * by_weight, bias - 0.01 * by_bias)


def layer_twice(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return pooled_convolution(images, weight, bias, torch.float32, twice=True)


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("inputs", [1, 16])
def test_second_derivatives_alone_and_stacked(inputs: int) -> None:
    (images, weights, biases), gradient = example(inputs)
    wide = [part.cpu().double() for part in (weights, biases, images, gradient)]
    expected = [grad(moved_loss, (0, 1, 2))(*own, layer) for own in zip(*wide, strict=True)]
    stacked = vmap(grad(moved_loss, (0, 1, 2)), (0, 0, 0, 0, None))(
        weights, biases, images, gradient, layer_twice
    )
    alone = grad(moved_loss, (0, 1, 2))(weights[1], biases[1], images[1], gradient[1], layer_twice)
    for number in range(3):
        assert_close(stacked[number], torch.stack([own[number] for own in expected]), within=1e-4)
        assert_close(alone[number], expected[1][number], within=1e-4)


@pytest.mark.usefixtures("served")
def test_two_layers_differentiated_twice() -> None:
    (images, _, _), _ = example(1)
    weights, biases = drawn(RUNS, 16, 16, 3, 3, seed=4), drawn(RUNS, 16, seed=5)

    def both(images: Tensor, weight: Tensor, bias: Tensor, by: Callable[..., Tensor]) -> Tensor:
        shifted = by(images, weight[:, :1].contiguous(), bias)
        return by(shifted, weight, bias)

    def value(weight: Tensor, bias: Tensor, images: Tensor, by: Callable[..., Tensor]) -> Tensor:
        return moved_loss(
            weight, bias, images, torch.ones((), device=images.device), lambda *own: both(*own, by)
        )

    wide = [part.cpu().double() for part in (weights, biases, images)]
    expected = [grad(value, (0, 1))(*own, layer) for own in zip(*wide, strict=True)]
    found = vmap(grad(value, (0, 1)), (0, 0, 0, None))(weights, biases, images, layer_twice)
    for number in range(2):
        assert_close(found[number], torch.stack([own[number] for own in expected]), within=1e-4)


@pytest.mark.usefixtures("served")
def test_pixels_that_want_no_gradient_cost_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from metavib.nn.kernels import convolution

    (images, weights, biases), _ = example(1)
    calls = []
    convolve = convolution.convolve
    monkeypatch.setattr(convolution, "convolve", lambda *given: calls.append(given) or convolve(*given))
    vmap(grad(lambda *own: (layer_twice(*own[::-1]) * 1.0).sum(), (0, 1)))(biases, weights, images)
    assert len(calls) == 1


# --- images -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "changes", [{}, {"smallest_crop": 0.4, "flip": 0.5}, {"flip": 0.5, "colour": 0.4, "grey": 0.3}]
)
def test_stored_images_are_made_ready_as_transforms_define_it(
    channels: int, changes: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    stored = torch.randint(0, 256, (5, channels, 40, 40), dtype=torch.uint8, generator=generator)
    rows, preprocessing = (
        torch.tensor([4, 0, 4]),
        Preprocessing(40, channels, (0.4,) * channels, (0.3,) * channels),
    )
    draws = torch.rand(3, DRAWS_PER_IMAGE, generator=generator) if changes else None
    expected = prepare(stored, rows, preprocessing, Augmentation(**changes), draws)
    monkeypatch.setattr(kernels, "run_on", lambda device: True)
    draws = None if draws is None else draws.to(DEVICE)
    found = prepare(stored.to(DEVICE), rows.to(DEVICE), preprocessing, Augmentation(**changes), draws)
    assert found.shape == expected.shape
    assert_close(found, expected)


# --- what follows a convolution ---------------------------------------------------------------------------


def joined_twin(parts: list[Tensor], pooled: bool) -> Tensor:
    """Bias, ReLU, pooling and joining in torch's operators, in their usual order."""
    maps = [(own + bias.view(-1, 1, 1)).relu() for own, bias in zip(parts[::2], parts[1::2], strict=True)]
    whole = torch.cat(maps, dim=1)
    return functional.max_pool2d(whole, 3, stride=2, ceil_mode=True) if pooled else whole


def maps_and_biases(side: int, channels: tuple[int, ...]) -> list[Tensor]:
    """Maps [3, channels, side, side] and biases, one pair a part."""
    return [
        part
        for seed, own in enumerate(channels)
        for part in (drawn(3, own, side, side, seed=seed), drawn(own, seed=10 + seed))
    ]


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("side", [3, 4, 7, 8, 9])  # of even ones the last window hangs over
@pytest.mark.parametrize("channels", [(6,), (16, 5)])
def test_what_follows_a_convolution(
    channels: tuple[int, ...], side: int, pooled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "run_on", lambda device: True)
    parts = [part.requires_grad_() for part in maps_and_biases(side, channels)]
    exact = [part.detach().cpu().double().requires_grad_() for part in parts]
    found = activated(list(zip(parts[::2], parts[1::2], strict=True)), pooled=pooled)
    expected = joined_twin(exact, pooled)
    assert found.shape == expected.shape
    assert_close(found, expected)
    gradient = drawn(*expected.shape, seed=99)
    found_gradients = torch.autograd.grad(found, parts, gradient)
    expected_gradients = torch.autograd.grad(expected, exact, gradient.cpu().double())
    for own, other in zip(found_gradients, expected_gradients, strict=True):
        assert_close(own, other)


@pytest.mark.parametrize("pooled", [False, True])
def test_what_follows_the_convolutions_of_stacked_runs(pooled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "run_on", lambda device: True)
    maps, bias, other, other_bias = maps_and_biases(5, (4, 6))
    stacked = (torch.stack([maps, -maps]), torch.stack([bias, 2 * bias]))

    def loss(own: Tensor, own_bias: Tensor) -> Tensor:
        joined = activated([(own, own_bias), (other, other_bias)], pooled=pooled)
        return joined.square().sum()

    found = vmap(grad(loss, argnums=(0, 1)))(*stacked)
    for run in range(2):
        alone = grad(loss, argnums=(0, 1))(stacked[0][run], stacked[1][run])
        for own, expected in zip(found, alone, strict=True):
            assert_close(own[run], expected)


def test_a_value_that_is_no_number_is_passed_on_by_what_follows_a_convolution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "run_on", lambda device: True)
    maps, bias = maps_and_biases(5, (4,))
    maps[1, 2, 3, 3] = torch.nan
    assert activated([(maps, bias)]).isnan().sum() == 1
    assert activated([(maps, bias)], pooled=True)[1, 2].isnan().any()


def derivative(
    own: Callable[[list[Tensor], bool], Tensor], given: list[Tensor], pooled: bool, order: int
) -> Any:
    """The derivative of this order by maps, biases and a weight of what comes out, which is the last one given."""

    def value(given: list[Tensor]) -> Tensor:
        *parts, weight = given
        return ((-own(parts, pooled)).exp() * weight).sum()  # whose derivatives are not zero even at zero

    for _ in range(order - 1):
        value = squared_slopes(value)
    return grad(value)(given)


def squared_slopes(value: Callable[[list[Tensor]], Tensor]) -> Callable[[list[Tensor]], Tensor]:
    def squared(given: list[Tensor]) -> Tensor:
        return torch.stack([own.square().mean() for own in grad(value)(given)]).sum()

    return squared


def by_kernels(parts: list[Tensor], pooled: bool) -> Tensor:
    return activated(list(zip(parts[::2], parts[1::2], strict=True)), pooled=pooled)


def half_cut_off(side: int, channels: tuple[int, ...], pooled: bool) -> list[Tensor]:
    """Maps, biases and a weight for `derivative`; the ReLU cuts off about half of what comes out."""
    parts = maps_and_biases(side, channels)
    parts[1::2] = [bias - 1.5 if pooled else bias for bias in parts[1::2]]
    joined = joined_twin(parts, pooled)
    assert 0.2 < (joined > 0).float().mean() < 0.8
    return [*parts, drawn(*joined.shape, seed=20)]


def doubled(parts: list[Tensor]) -> list[Tensor]:
    return [part.detach().cpu().double() for part in parts]


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize(("channels", "side"), [((6,), 4), ((6,), 5), ((5, 3), 5), ((5, 3), 6)])
def test_the_second_derivative_of_what_follows_a_convolution(
    channels: tuple[int, ...], side: int, pooled: bool
) -> None:
    given = half_cut_off(side, channels, pooled)
    found = derivative(by_kernels, given, pooled, 2)
    expected = derivative(joined_twin, doubled(given), pooled, 2)
    for own, other in zip(found, expected, strict=True):
        assert other.any()
        assert_close(own / other.abs().max(), other / other.abs().max())


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("order", [3, 4])
def test_further_derivatives_of_what_follows_a_convolution(order: int, pooled: bool) -> None:
    given = half_cut_off(4, (3, 2), pooled)
    found = derivative(by_kernels, given, pooled, order)
    expected = derivative(joined_twin, doubled(given), pooled, order)
    for own, other in zip(found, expected, strict=True):
        assert other.any()
        assert_close(own / other.abs().max(), other / other.abs().max(), within=1e-4)


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("pooled", [False, True])
def test_of_what_is_cut_off_all_derivatives_are_zero(pooled: bool) -> None:
    maps, bias, weight = half_cut_off(4, (5,), pooled)
    for own in derivative(by_kernels, [maps, bias - 100, weight], pooled, 2)[:2]:
        assert not own.any()


@pytest.mark.usefixtures("served")
@pytest.mark.filterwarnings(
    "ignore:overflow encountered in cast"
)  # a value outside the image is -inf in float16
@pytest.mark.parametrize("pooled", [False, True])
def test_second_derivatives_keep_the_precisions_of_maps_and_biases(pooled: bool) -> None:
    # In float16, as the interpreter is wrong in bfloat16.
    maps, bias, other, other_bias, weight = half_cut_off(4, (3, 2), pooled)
    given = [maps.half(), bias, other.half(), other_bias, weight]
    found = derivative(by_kernels, given, pooled, 2)
    expected = derivative(joined_twin, doubled(given), pooled, 2)
    for own, part, twin in zip(found, given, expected, strict=True):
        assert own.dtype == part.dtype
        assert_close(own / twin.abs().max(), twin / twin.abs().max(), within=1e-2)


def two_layers(weights: list[Tensor], images: Tensor, by_kernels: bool) -> Tensor:
    """A pooled convolution and a fire module, as small as they can be; the mean square of its features."""
    first, first_bias, narrow, narrow_bias, wide, wide_bias = weights
    fused = activated if by_kernels else plainly_activated
    maps = fused([(functional.conv2d(images, first, stride=2), first_bias)], pooled=True)
    parts = [
        (functional.conv2d(maps, narrow), narrow_bias),
        (functional.conv2d(maps, wide, padding=1), wide_bias),
    ]
    return fused(parts).mean((2, 3)).square().mean()


def plainly_activated(parts: list[tuple[Tensor, Tensor]], *, pooled: bool = False) -> Tensor:
    return joined_twin([tensor for part in parts for tensor in part], pooled)


def inner_and_outer(weights: list[Tensor], images: Tensor, by_kernels: bool) -> Tensor:
    """The loss after one step down its gradient, as second-order methods differentiate it."""
    slopes = grad(two_layers)(weights, images, by_kernels)
    moved = [own - 0.5 * slope for own, slope in zip(weights, slopes, strict=True)]
    return two_layers(moved, images, by_kernels)


@pytest.mark.usefixtures("served")
def test_a_step_inside_a_step_of_small_networks_alone_and_stacked() -> None:
    shapes = [(4, 3, 3, 3), (4,), (3, 4, 1, 1), (3,), (2, 4, 3, 3), (2,)]
    stacked = [drawn(RUNS, *shape, seed=seed) for seed, shape in enumerate(shapes)]
    images = drawn(2, 3, 11, 11, seed=9)
    twins, exact = doubled(stacked), images.cpu().double()
    expected = [grad(inner_and_outer)([own[run] for own in twins], exact, False) for run in range(RUNS)]
    first_order = grad(two_layers)([own[0] for own in twins], exact, False)
    assert (expected[0][0] - first_order[0]).abs().max() > 1e-2

    def together(weights: list[Tensor]) -> Tensor:
        return vmap(inner_and_outer, (0, None, None))(weights, images, True).sum()

    leaves = [own.clone().requires_grad_() for own in stacked]
    found = [
        vmap(grad(inner_and_outer), (0, None, None))(stacked, images, True),
        grad(together)(stacked),  # differentiated from outside
        torch.autograd.grad(together(leaves), leaves),
    ]
    alone = grad(inner_and_outer)([own[0] for own in stacked], images, True)
    for number, own in enumerate(alone):
        assert_close(own, expected[0][number])
        for way in found:
            assert_close(way[number], torch.stack([run[number] for run in expected]))
