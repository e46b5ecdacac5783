"""Convolutions in a form that GPUs are fast at: with derivatives of any order, and of images of few channels.

torch differentiates the gradient of a convolution by a convolution whose kernel is as large as the maps, and no
library is fast at that. But a convolution is linear in its maps and in its weights, and so are its two gradients:
each derivative of one of the three is another of the three, for which libraries are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from metavib.core.shapes import Float
from metavib.nn.kernels.stacked_functions import RunByRun

Step = tuple[list[int], list[int]]  # stride and padding

_CHANNELS_AT_A_TIME = 16
_UNCHANGED = ([1, 1], False, [0, 0], 1)  # dilation, transposed, padding of the output, groups


def convolution_of_any_order(
    maps: Float[Tensor, "batch inputs height width"],
    weight: Float[Tensor, "outputs inputs _ _"],
    stride: Sequence[int],
    padding: Sequence[int],
) -> Float[Tensor, "batch outputs _ _"]:
    """`conv2d` without a bias, of maps and weights in the same precision."""
    return _Convolution.apply(maps, weight, (list(stride), list(padding)))


def folded(
    images: Float[Tensor, "batch channels height width"],
    weight: Float[Tensor, "outputs channels kernel kernel"],
) -> tuple[Float[Tensor, "batch folded _ _"], Float[Tensor, "outputs folded _ _"]]:
    """Images of even sides and weights whose convolution with stride 1 is that of the given ones with stride 2.

    Each square of 2 x 2 pixels becomes one pixel with four times the channels, and zeros fill them up to the
    number that tensor cores take at a time: of three channels they would waste most.
    """
    batch, channels, height, width = images.shape
    missing = -4 * channels % _CHANNELS_AT_A_TIME
    squares = images.permute(0, 2, 3, 1).reshape(batch, height // 2, 2, width // 2, 2, channels)
    pixels = squares.transpose(2, 3).reshape(batch, height // 2, width // 2, 4 * channels)
    outputs, _, kernel, _ = weight.shape
    even = nn.functional.pad(weight, (0, kernel % 2, 0, kernel % 2))  # by zeros, which add nothing
    half = even.shape[-1] // 2
    parts = even.reshape(outputs, channels, half, 2, half, 2).permute(0, 2, 4, 3, 5, 1)
    taps = parts.reshape(outputs, half, half, 4 * channels)
    filled = (nn.functional.pad(own, (0, missing)) for own in (pixels, taps))
    folded_images, folded_weight = (own.permute(0, 3, 1, 2) for own in filled)
    return folded_images, folded_weight


class _Convolution(RunByRun):
    @staticmethod
    def forward(maps: Tensor, weight: Tensor, step: Step) -> Tensor:
        return nn.functional.conv2d(maps, weight, None, *step)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        maps, weight, ctx.step = inputs
        ctx.save_for_backward(maps, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (maps, weight), (gradient,) = ctx.saved_tensors, gradients
        by_maps, by_weight, _ = ctx.needs_input_grad
        return (
            _ByMaps.apply(gradient, weight, maps.shape, ctx.step) if by_maps else None,
            _ByWeight.apply(maps, gradient, weight.shape, ctx.step) if by_weight else None,
            None,
        )


class _ByMaps(RunByRun):
    """The gradient by the maps: linear in the gradient of what the convolution gave, and in its weights."""

    @staticmethod
    def forward(gradient: Tensor, weight: Tensor, shape: Sequence[int], step: Step) -> Tensor:
        # Of the maps it is the shape that counts, and how they lie in memory.
        maps = torch.empty(
            *shape, dtype=gradient.dtype, device=gradient.device, memory_format=torch.channels_last
        )
        return _gradient_by(0, gradient, maps, weight, step)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        gradient, weight, _, ctx.step = inputs
        ctx.save_for_backward(gradient, weight)

    @staticmethod
    def backward(ctx: Any, *changes: Tensor) -> tuple[Tensor | None, ...]:
        (gradient, weight), (change,) = ctx.saved_tensors, changes
        by_gradient, by_weight, *_ = ctx.needs_input_grad
        return (
            _Convolution.apply(change, weight, ctx.step) if by_gradient else None,
            _ByWeight.apply(change, gradient, weight.shape, ctx.step) if by_weight else None,
            None,
            None,
        )


class _ByWeight(RunByRun):
    """The gradient by the weights: linear in the maps, and in the gradient of what the convolution gave."""

    @staticmethod
    def forward(maps: Tensor, gradient: Tensor, shape: Sequence[int], step: Step) -> Tensor:
        return _gradient_by(1, gradient, maps, maps.new_empty(*shape), step)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        maps, gradient, _, ctx.step = inputs
        ctx.save_for_backward(maps, gradient)

    @staticmethod
    def backward(ctx: Any, *changes: Tensor) -> tuple[Tensor | None, ...]:
        (maps, gradient), (change,) = ctx.saved_tensors, changes
        by_maps, by_gradient, *_ = ctx.needs_input_grad
        return (
            _ByMaps.apply(gradient, change, maps.shape, ctx.step) if by_maps else None,
            _Convolution.apply(maps, change, ctx.step) if by_gradient else None,
            None,
            None,
        )


def _gradient_by(place: int, gradient: Tensor, maps: Tensor, weight: Tensor, step: Step) -> Tensor:
    """By the maps (0) or by the weights (1)."""
    wanted = [place == 0, place == 1, False]
    found = torch.ops.aten.convolution_backward(gradient, maps, weight, None, *step, *_UNCHANGED, wanted)
    return found[place]
