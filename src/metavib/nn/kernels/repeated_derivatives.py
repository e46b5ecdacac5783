"""Convolution, pooling and ReLU by our kernels, with derivatives of any order: some methods need second ones.

The derivatives of a convolution are convolutions again, and sums over its positions (the weights' gradient), whose
derivatives are convolutions. Pooling with ReLU selects values; its derivative puts gradients back to where the
values came from, and the derivative of that selects again. So a few functions are closed under differentiation.

Maps are channels last, [batch, side, side, channels], in the precision of the computation; weights are float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from metavib.core.shapes import Float
from metavib.nn.kernels.stacked_functions import AllRuns

FEWEST_CHANNELS = 16  # of what tensor cores multiply


def pooled_convolution_of_any_order(
    images: Float[Tensor, "batch inputs side side"],
    weight: Float[Tensor, "outputs inputs 3 3"],
    bias: Float[Tensor, "outputs"],
    dtype: torch.dtype,
) -> Float[Tensor, "batch outputs half half"]:
    """relu(max_pool(conv(images))), in two passes. What `pooled_convolution` gives."""
    missing = max(0, FEWEST_CHANNELS - weight.shape[1])  # of grey images
    maps = nn.functional.pad(images.to(dtype).movedim(-3, -1), (0, missing))
    weight = nn.functional.pad(weight, (0, 0, 0, 0, 0, missing))
    pooled, _ = _Pool.apply(_Convolution.apply(maps, weight, bias))
    return pooled.movedim(-1, -3)


class _Convolution(AllRuns):
    @staticmethod
    def of_runs(maps: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        from metavib.nn.kernels import convolution

        own = None if bias is None else bias.to(maps.dtype).contiguous()
        return convolution.convolve(maps.contiguous(), weight.to(maps.dtype), own)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        maps, weight, ctx.bias = inputs[0], inputs[1], inputs[2] is not None
        ctx.save_for_backward(maps, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (maps, weight), (gradient,) = ctx.saved_tensors, gradients
        by_maps = _Convolution.apply(gradient, _turned(weight), None) if ctx.needs_input_grad[0] else None
        by_bias = gradient.sum((0, 1, 2), dtype=torch.float32) if ctx.bias else None
        return by_maps, _WeightGradient.apply(maps, gradient), by_bias


class _WeightGradient(AllRuns):
    """Of a convolution of these maps: linear in them, and in the gradient of what it gave."""

    @staticmethod
    def of_runs(maps: Tensor, gradient: Tensor) -> Tensor:
        from metavib.nn.kernels import convolution

        return convolution.weight_gradient(maps.contiguous(), gradient.contiguous())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (maps, gradient), (by_weight,) = ctx.saved_tensors, gradients
        by_maps = _Convolution.apply(gradient, _turned(by_weight), None) if ctx.needs_input_grad[0] else None
        return by_maps, _Convolution.apply(maps, by_weight, None)


class _Pool(AllRuns):
    """Max pooling and ReLU; `places` says where in its window each value came from."""

    @staticmethod
    def of_runs(values: Tensor) -> tuple[Tensor, Tensor]:
        from metavib.nn.kernels import pooling

        return pooling.pool(values.contiguous())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _PutBack.apply(*ctx.saved_tensors, gradients[0])


class _PutBack(AllRuns):
    """Pooled values, each where it came from; zero elsewhere."""

    @staticmethod
    def of_runs(places: Tensor, pooled: Tensor) -> Tensor:
        from metavib.nn.kernels import pooling

        return pooling.pool_backward(places.contiguous(), pooled.contiguous())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, _Select.apply(*ctx.saved_tensors, gradients[0])


class _Select(AllRuns):
    """The values at these places; zero for a window that the ReLU cut off."""

    @staticmethod
    def of_runs(places: Tensor, values: Tensor) -> Tensor:
        from metavib.nn.kernels import pooling

        return pooling.select(places.contiguous(), values.contiguous())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, _PutBack.apply(*ctx.saved_tensors, gradients[0])


def _turned(weight: Tensor) -> Tensor:
    """The weights that carry gradients back from outputs to inputs."""
    return weight.flip(-1, -2).transpose(0, 1)
