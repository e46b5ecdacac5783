"""3 x 3 convolution, 3 x 3 max pooling with stride 2, ReLU: the layer of the digit network, alone and stacked.

On a CPU it is torch's own operators. On a GPU it is our kernels, which also take the layers of many runs in one
call: `vmap` over torch's convolution would become a grouped convolution, for 32 channels many times slower.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from metavib.core.shapes import Float
from metavib.nn import kernels
from metavib.nn.kernels.repeated_derivatives import pooled_convolution_of_any_order
from metavib.nn.kernels.stacked_functions import AllRuns


def pooled_convolution(
    images: Float[Tensor, "batch inputs side side"],
    weight: Float[Tensor, "outputs inputs 3 3"],
    bias: Float[Tensor, "outputs"],
    dtype: torch.dtype,
    *,
    twice: bool = False,
) -> Float[Tensor, "batch outputs half half"]:
    """relu(max_pool(conv(images))), computed in this precision. Pooling first gives the same on a quarter.

    `twice`: it will be differentiated more than once, which the fastest kernels do not allow. Nor do they know the
    gradient of a grey image's pixels.
    """
    if _kernels_take(weight, images.shape[-1], dtype) and kernels.run_on(images.device):
        if twice or (weight.shape[1] == 1 and images.requires_grad):
            return pooled_convolution_of_any_order(images, weight, bias, dtype)
        return _PooledConvolution.apply(images, weight, bias, dtype)[0]
    images, weight, bias = images.to(dtype), weight.to(dtype), bias.to(dtype)
    convolved = nn.functional.conv2d(images, weight, bias, padding=1)
    return nn.functional.max_pool2d(convolved, 3, stride=2, padding=1).relu()


def _kernels_take(weight: Tensor, side: int, dtype: torch.dtype) -> bool:
    """Whether our kernels know this layer: one input channel, or numbers of them that tensor cores like."""
    outputs, inputs = weight.shape[:2]
    sizes = inputs in (1, 16, 32, 64) and outputs in (16, 32, 64) and side % 2 == 0
    return sizes and dtype in (torch.float32, torch.bfloat16)


class _PooledConvolution(AllRuns):
    """The layer by our kernels; `places` says where in its window each pooled value came from."""

    @staticmethod
    def of_runs(images: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """[runs, batch, inputs, side, side] -> [runs, batch, outputs, half, half], lying channels last."""
        from metavib.nn.kernels import convolution, pooling

        weight, bias = weight.to(dtype), bias.to(dtype).contiguous()  # one that all runs share is not
        if images.shape[2] == 1:
            pooled, places = convolution.first_layer(images[:, :, 0].to(dtype).contiguous(), weight, bias)
        else:
            maps = convolution.convolve(_channels_last(images.to(dtype)), weight, bias)
            pooled, places = pooling.pool(maps)
        return pooled.permute(0, 1, 4, 2, 3), places

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        images, weight, _, ctx.dtype = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(images, weight, output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        images, weight, places = ctx.saved_tensors
        return *_Backward.apply(images, weight, places, gradients[0], ctx.dtype), None


class _Backward(AllRuns):
    """The gradients of the layer; a function of its own, because `vmap` must find a rule for it too."""

    @staticmethod
    def of_runs(
        images: Tensor, weight: Tensor, places: Tensor, gradient: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of images, weight and bias."""
        from metavib.nn.kernels import convolution, pooling

        gradient, places = _channels_last(gradient.to(dtype)), places.contiguous()
        if images.shape[2] == 1:
            by_weight, by_bias = convolution.first_layer_backward(
                images[:, :, 0].to(dtype).contiguous(), places, gradient
            )
            # Nobody asked for the gradient of the pixels: `pooled_convolution` saw to it.
            return torch.zeros_like(images), by_weight.to(weight.dtype), by_bias.to(weight.dtype)
        scattered = pooling.pool_backward(places, gradient)
        by_images = convolution.input_gradient(scattered, weight.to(dtype)).permute(0, 1, 4, 2, 3)
        by_weight = convolution.weight_gradient(_channels_last(images.to(dtype)), scattered)
        by_bias = scattered.flatten(1, 3).sum(dim=1, dtype=torch.float32)
        return by_images.to(images.dtype), by_weight.to(weight.dtype), by_bias.to(weight.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:
        raise NotImplementedError("these kernels have no second derivative: `repeated_derivatives` has")


def _channels_last(images: Tensor) -> Tensor:
    return images.permute(0, 1, 3, 4, 2).contiguous()
