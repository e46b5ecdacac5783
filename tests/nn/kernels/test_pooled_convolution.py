"""The layer in torch's operators, and when the kernels take it; tests/kernels compares the two."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from metavib.nn import kernels
from metavib.nn.kernels import pooled_convolution as module
from metavib.nn.kernels.pooled_convolution import pooled_convolution

pytestmark = pytest.mark.kernels


def example(
    inputs: int = 1, outputs: int = 16, side: int = 8, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, inputs, side, side), (outputs, inputs, 3, 3), (outputs,))
    images, weight, bias = (torch.randn(shape, dtype=dtype, generator=generator) for shape in shapes)
    return images, weight, bias


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("inputs", "side", "half"), [(1, 28, 14), (32, 14, 7), (3, 7, 4)])
def test_on_a_cpu_it_is_convolution_then_relu_then_pooling(
    inputs: int, side: int, half: int, dtype: torch.dtype
) -> None:
    images, weight, bias = example(inputs, side=side, dtype=dtype)
    convolution = nn.Conv2d(inputs, 16, 3, padding=1, dtype=dtype)
    convolution.load_state_dict({"weight": weight, "bias": bias})
    expected = nn.MaxPool2d(3, stride=2, padding=1)(
        convolution(images).relu()
    )  # the order of the paper's table
    found = pooled_convolution(images, weight, bias, dtype)
    assert found.shape == (2, 16, half, half)
    torch.testing.assert_close(found, expected)


def test_it_computes_in_the_precision_that_is_asked_for_and_gradients_come_back_in_the_parameters_own() -> (
    None
):
    images, weight, bias = (part.requires_grad_() for part in example(3, 4))
    found = pooled_convolution(images, weight, bias, torch.bfloat16)
    assert found.dtype == torch.bfloat16
    found.float().sum().backward()
    assert {part.grad.dtype for part in (images, weight, bias) if part.grad is not None} == {torch.float32}
    exact = pooled_convolution(images, weight, bias, torch.float32)
    torch.testing.assert_close(found.float(), exact, rtol=0.05, atol=0.05)


def test_gradients_in_float64() -> None:
    parts = [part.requires_grad_() for part in example(2, 3, side=6, dtype=torch.float64)]
    assert torch.autograd.gradcheck(lambda *given: pooled_convolution(*given, torch.float64), parts)


def test_stacked_layers_are_each_its_own() -> None:
    images, weight, bias = example(2, 3)
    weights, biases = torch.stack([weight, 2 * weight]), torch.stack([bias, -bias])
    stacked = vmap(pooled_convolution, (None, 0, 0, None))(images, weights, biases, torch.float32)
    for found, *own in zip(stacked, weights, biases, strict=True):
        torch.testing.assert_close(found, pooled_convolution(images, *own, torch.float32))


# --- who computes it --------------------------------------------------------------------------------------


class Taken(Exception):
    """The kernels would have been called."""


@pytest.fixture
def _kernels_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    def apply(*given: Any) -> None:
        raise Taken

    monkeypatch.setattr(kernels, "run_on", lambda device: True)
    monkeypatch.setattr(module, "_PooledConvolution", SimpleNamespace(apply=apply))


@pytest.mark.usefixtures("_kernels_serve")
@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        ((1, 16), torch.float32),
        ((16, 32), torch.float32),
        ((64, 64), torch.float32),
        ((1, 32), torch.bfloat16),
    ],
)
def test_the_kernels_take_the_sizes_that_they_know(sizes: tuple[int, int], dtype: torch.dtype) -> None:
    with pytest.raises(Taken):
        pooled_convolution(*example(*sizes), dtype)


@pytest.mark.usefixtures("_kernels_serve")
@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        ((3, 16, 8), torch.float32),
        ((16, 24, 8), torch.float32),
        ((16, 16, 7), torch.float32),
        ((16, 16, 8), torch.float64),
    ],
)
def test_and_no_others(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    images, weight, bias = example(*sizes, dtype=dtype)
    expected = nn.functional.max_pool2d(nn.functional.conv2d(images, weight, bias, padding=1).relu(), 3, 2, 1)
    torch.testing.assert_close(pooled_convolution(images, weight, bias, dtype), expected)


class TakenOfAnyOrder(Exception):
    """The kernels with derivatives of any order would have been called."""


@pytest.fixture
def _those_of_any_order_serve(_kernels_serve: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def apply(*given: Any) -> None:
        raise TakenOfAnyOrder

    monkeypatch.setattr(module, "pooled_convolution_of_any_order", apply)


@pytest.mark.usefixtures("_those_of_any_order_serve")
@pytest.mark.parametrize("inputs", [1, 16])
def test_where_it_is_differentiated_twice_the_kernels_are_those_that_can_be(inputs: int) -> None:
    with pytest.raises(TakenOfAnyOrder):
        pooled_convolution(*example(inputs), torch.float32, twice=True)
    with pytest.raises(Taken):
        pooled_convolution(*example(inputs), torch.float32)


@pytest.mark.usefixtures("_those_of_any_order_serve")
def test_and_for_the_gradient_of_grey_pixels() -> None:
    images, weight, bias = example()

    def total(images: Tensor) -> Tensor:
        return pooled_convolution(images, weight, bias, torch.float32).sum()

    with pytest.raises(Taken):
        total(images)
    for differentiated in (grad(total), lambda images: vmap(grad(total))(images[None])):
        with pytest.raises(TakenOfAnyOrder):
            differentiated(images)
