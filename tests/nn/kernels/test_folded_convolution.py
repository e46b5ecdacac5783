"""A convolution whose derivatives of any order are convolutions: torch's own is what it must equal."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from metavib.nn.kernels.folded_convolution import convolution_of_any_order, folded

pytestmark = pytest.mark.kernels

STEPS = [(1, 0, 1), (1, 1, 3), (2, 0, 3), (2, 3, 7)]  # stride, padding, side of the kernel


def example(kernel: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(2, 3, 8, 8, dtype=dtype, generator=generator)
    return maps, torch.randn(4, 3, kernel, kernel, dtype=dtype, generator=generator)


@pytest.mark.parametrize(("stride", "padding", "kernel"), STEPS)
def test_it_is_torchs_convolution(stride: int, padding: int, kernel: int) -> None:
    maps, weight = example(kernel)
    own = convolution_of_any_order(maps, weight, (stride, stride), (padding, padding))
    assert torch.equal(own, nn.functional.conv2d(maps, weight, stride=stride, padding=padding))


@pytest.mark.parametrize(("stride", "padding", "kernel"), STEPS)
def test_first_and_second_derivatives(stride: int, padding: int, kernel: int) -> None:
    inputs = tuple(tensor.requires_grad_() for tensor in example(kernel))

    def convolved(maps: Tensor, weight: Tensor) -> Tensor:
        return convolution_of_any_order(maps, weight, (stride, stride), (padding, padding))

    assert torch.autograd.gradcheck(convolved, inputs)
    assert torch.autograd.gradgradcheck(convolved, inputs)


@pytest.mark.parametrize(("stride", "padding", "kernel"), STEPS)
def test_a_step_through_a_step_and_the_third_derivative_are_torchs(
    stride: int, padding: int, kernel: int
) -> None:
    maps, weight = example(kernel)

    def third(convolution: object) -> Tensor:
        def loss(weight: Tensor) -> Tensor:
            hidden = convolution(maps, weight, stride=(stride, stride), padding=(padding, padding))  # type: ignore[operator]
            return hidden.sin().square().sum()

        def moved(weight: Tensor) -> Tensor:
            return loss(weight - 0.1 * grad(loss)(weight))

        return grad(lambda weight: grad(moved)(weight).square().sum())(weight)

    torch.testing.assert_close(third(convolution_of_any_order), third(nn.functional.conv2d))


def test_runs_that_are_stacked_are_each_its_own() -> None:
    maps, weight = example(3)
    weights = torch.stack([weight, -2 * weight])

    def slope(weight: Tensor) -> Tensor:
        def loss(weight: Tensor) -> Tensor:
            return convolution_of_any_order(maps, weight, (1, 1), (1, 1)).sin().sum()

        return grad(lambda own: grad(loss)(own).square().sum())(weight)

    stacked = vmap(slope)(weights)
    for own, alone in zip(stacked, weights, strict=True):
        torch.testing.assert_close(own, slope(alone))


def test_half_precision_stays_half_precision() -> None:
    maps, weight = (tensor.requires_grad_() for tensor in example(3, torch.bfloat16))
    out = convolution_of_any_order(maps, weight, (1, 1), (1, 1))
    assert out.dtype == torch.bfloat16
    assert {own.dtype for own in torch.autograd.grad(out.sum(), (maps, weight))} == {torch.bfloat16}


@pytest.mark.parametrize("kernel", [1, 2, 3, 7])
@pytest.mark.parametrize("channels", [1, 3, 4, 5])
def test_of_folded_images_a_convolution_without_stride_is_that_with_stride_two(
    kernel: int, channels: int
) -> None:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(2, channels, 10, 14, dtype=torch.float64, generator=generator)
    weight = torch.randn(6, channels, kernel, kernel, dtype=torch.float64, generator=generator)
    expected = nn.functional.conv2d(images, weight, stride=2)
    own_images, own_weight = folded(images, weight)
    assert own_images.shape[1] == own_weight.shape[1]
    assert own_images.shape[1] % 16 == 0
    assert own_images.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(nn.functional.conv2d(own_images, own_weight), expected)


def test_folding_can_be_differentiated_by_images_and_weights() -> None:
    maps, weight = example(3)

    def slopes(convolution: object) -> tuple[Tensor, ...]:
        def loss(maps: Tensor, weight: Tensor) -> Tensor:
            return convolution(maps, weight).sin().sum()  # type: ignore[operator]

        return grad(loss, argnums=(0, 1))(maps, weight)

    own = slopes(lambda maps, weight: nn.functional.conv2d(*folded(maps, weight)))
    expected = slopes(lambda maps, weight: nn.functional.conv2d(maps, weight, stride=2))
    torch.testing.assert_close(own, expected)
