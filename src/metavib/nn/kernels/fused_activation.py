"""Bias, ReLU and joining of a network's maps, with or without 3 x 3 max pooling: what follows a convolution.

On a CPU it is torch's own operators. On a GPU it is our kernels, one pass for what takes torch several.

The layer is linear piece by piece: it selects values, and which ones is fixed once they are computed. Its way back
(`_Backward`) sends gradients to where the values came from, the derivative of that (`_Selected`) fetches changes
from there, and the derivative of that is the way back again. So all derivatives are there, of any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from metavib.core.shapes import Float
from metavib.nn import kernels
from metavib.nn.kernels.stacked_functions import RunByRun


def activated(
    parts: Sequence[tuple[Float[Tensor, "batch _ side side"], Float[Tensor, "_"]]], *, pooled: bool = False
) -> Float[Tensor, "batch joined height width"]:
    """relu(maps + bias) of all parts, joined along the channels; or that, pooled 3 x 3 with stride 2.

    As in SqueezeNet, the last windows of a pooling may hang over the edge.
    """
    if kernels.run_on(parts[0][0].device) and parts[0][0].dtype != torch.float64:
        flat = [tensor for part in parts for tensor in part]
        return _Activated.apply(pooled, *flat)[0]
    joined = torch.cat([maps + bias.to(maps.dtype).view(-1, 1, 1) for maps, bias in parts], dim=1)
    if pooled:
        joined = nn.functional.max_pool2d(joined, 3, stride=2, ceil_mode=True)
    return joined.relu()


class _Activated(RunByRun):
    """By our kernels: the joined maps and, where they are pooled, the places of each part."""

    @staticmethod
    def forward(pooled: bool, *parts: Tensor) -> tuple[Tensor, ...]:
        from metavib.nn.kernels import activation

        maps = [_channels_last(own) for own in parts[::2]]
        count, side = maps[0].shape[0], maps[0].shape[1]
        kept = activation.pooled_side(side) if pooled else side
        joined = maps[0].new_empty(count, kept, kept, sum(own.shape[-1] for own in maps))
        places, offset = [], 0
        for own, bias in zip(maps, parts[1::2], strict=True):
            if pooled:
                places.append(activation.pool(own, bias.contiguous(), joined, offset))
            else:
                activation.activate(own, bias.contiguous(), joined, offset)
            offset += own.shape[-1]
        return joined.permute(0, 3, 1, 2), *places

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.pooled, maps, biases = inputs[0], inputs[1::2], inputs[2::2]
        ctx.side = maps[0].shape[-1]
        ctx.channels = tuple(own.shape[-3] for own in maps)
        ctx.types = [bias.dtype for bias in biases]
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*(output[1:] if ctx.pooled else output[:1]))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        found = _Backward.apply(ctx.pooled, ctx.side, ctx.channels, gradients[0], *ctx.saved_tensors)
        by_bias = (own.to(dtype) for own, dtype in zip(found[1::2], ctx.types, strict=True))
        pairs = zip(found[::2], by_bias, strict=True)
        return None, *(gradient for pair in pairs for gradient in pair)


class _Backward(RunByRun):
    """The gradients of maps and biases; a function of its own, because `vmap` must find a rule for it too."""

    @staticmethod
    def forward(
        pooled: bool, side: int, channels: tuple[int, ...], gradient: Tensor, *saved: Tensor
    ) -> tuple[Tensor, ...]:
        from metavib.nn.kernels import activation

        gradient = _channels_last(gradient)
        found: list[Tensor] = []
        offset = 0
        for number, own in enumerate(channels):
            if pooled:
                pair = activation.pool_backward(gradient, saved[number].contiguous(), side, offset)
            else:
                pair = activation.activate_backward(gradient, _channels_last(saved[0]), offset, own)
            found += [pair[0].permute(0, 3, 1, 2), pair[1]]
            offset += own
        return tuple(found)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.pooled, ctx.side, ctx.channels = inputs[:3]
        ctx.save_for_backward(*inputs[4:])

    @staticmethod
    def backward(ctx: Any, *changes: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        (selected,) = _Selected.apply(ctx.pooled, ctx.side, ctx.channels, len(saved), *saved, *changes)
        return None, None, None, selected, *(None for _ in saved)


class _Selected(RunByRun):
    """The derivative of `_Backward`: it selects what `_Activated` selected, of the maps and biases given now.

    The first `count` tensors say what was selected, as `_Activated` saved it.
    """

    @staticmethod
    def forward(
        pooled: bool, side: int, channels: tuple[int, ...], count: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        from metavib.nn.kernels import activation

        saved, parts = tensors[:count], tensors[count:]
        maps = [_channels_last(own) for own in parts[::2]]
        kept = saved[0].shape[1] if pooled else maps[0].shape[1]
        selected = maps[0].new_empty(maps[0].shape[0], kept, kept, sum(own.shape[-1] for own in maps))
        offset = 0
        for number, (own, bias) in enumerate(zip(maps, parts[1::2], strict=True)):
            if pooled:
                activation.select_pooled(own, bias.contiguous(), saved[number].contiguous(), selected, offset)
            else:
                activation.select(own, bias.contiguous(), _channels_last(saved[0]), selected, offset)
            offset += own.shape[-1]
        return (selected.permute(0, 3, 1, 2),)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.pooled, ctx.side, ctx.channels, count = inputs[:4]
        ctx.save_for_backward(*inputs[4 : 4 + count])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        found = _Backward.apply(ctx.pooled, ctx.side, ctx.channels, gradients[0], *saved)
        return None, None, None, None, *(None for _ in saved), *found


def _channels_last(maps: Tensor) -> Tensor:
    """[N, height, width, channels], as it lies in memory: a view where the maps are channels last already."""
    return maps.permute(0, 2, 3, 1).contiguous()
