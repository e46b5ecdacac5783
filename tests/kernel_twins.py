"""What the kernels of the digit network compute, by torch, for machines without a GPU."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from metavib.nn import kernels
from metavib.nn.kernels import pooled_convolution as kernel_layer
from metavib.nn.kernels import repeated_derivatives


def kernels_stand_in(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Let the digit network go the way of the kernels; counts the ways back through the layer that has but one."""
    monkeypatch.setattr(kernels, "run_on", lambda device: True)
    backward = Mock(side_effect=_backward)
    twins = {
        kernel_layer._PooledConvolution: _forward,
        kernel_layer._Backward: backward,
        repeated_derivatives._Convolution: _convolve,
        repeated_derivatives._WeightGradient: _weight_gradient,
        repeated_derivatives._Pool: _pool,
        repeated_derivatives._PutBack: _put_back,
        repeated_derivatives._Select: _select,
    }
    for function, twin in twins.items():
        monkeypatch.setattr(function, "of_runs", twin)
    return backward


def _forward(images: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What the kernels compute, by torch: [runs, batch, outputs, half, half], and where each value came from."""

    def one(images: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        convolved = nn.functional.conv2d(images, weight, bias, padding=1)
        pooled, places = nn.functional.max_pool2d(convolved, 3, 2, 1, return_indices=True)
        return pooled.relu(), torch.where(pooled > 0, places, -1)

    runs = [one(*own) for own in zip(images, weight, bias, strict=True)]
    return torch.stack([pooled for pooled, _ in runs]), torch.stack([places for _, places in runs])


def _backward(images: Tensor, weight: Tensor, places: Tensor, gradient: Tensor, dtype: torch.dtype) -> Any:
    """The gradients of the same layer; that of a grey image is left zero, as the kernels leave it."""
    found = []
    for own in zip(images, weight, places, gradient, strict=True):
        image, kernel, place, slope = own
        flat = torch.zeros(*slope.shape[:2], image.shape[-1] ** 2, dtype=slope.dtype)
        kept = (slope * (place >= 0)).flatten(2)
        scattered = flat.scatter_add(2, place.clamp_min(0).flatten(2), kept)
        scattered = scattered.unflatten(2, image.shape[-2:])
        found.append(
            torch.ops.aten.convolution_backward(
                scattered,
                image,
                kernel,
                [kernel.shape[0]],
                [1, 1],
                [1, 1],
                [1, 1],
                False,
                [0, 0],
                1,
                [True] * 3,
            )
        )
    by_images, by_weight, by_bias = (torch.stack(values) for values in zip(*found, strict=True))
    return (0 * by_images if images.shape[2] == 1 else by_images), by_weight, by_bias


# Those of the layer with derivatives of any order: maps are [runs, batch, side, side, channels], places say where
# on its map a pooled value lay, or -1.


def _convolve(maps: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    biases = [None] * len(maps) if bias is None else bias
    runs = [
        nn.functional.conv2d(own.movedim(-1, 1), kernel, shift, padding=1)
        for own, kernel, shift in zip(maps, weight, biases, strict=True)
    ]
    return torch.stack(runs).movedim(2, -1)


def _weight_gradient(maps: Tensor, gradient: Tensor) -> Tensor:
    shape = (gradient.shape[-1], maps.shape[-1], 3, 3)
    runs = [
        nn.grad.conv2d_weight(own.movedim(-1, 1), shape, slope.movedim(-1, 1), padding=1)
        for own, slope in zip(maps, gradient, strict=True)
    ]
    return torch.stack(runs)


def _pool(values: Tensor) -> tuple[Tensor, Tensor]:
    flat = values.flatten(0, 1).movedim(-1, 1)
    pooled, places = nn.functional.max_pool2d(flat, 3, 2, 1, return_indices=True)
    places = torch.where(pooled > 0, places, -1)
    pooled, places = (part.movedim(1, -1).unflatten(0, values.shape[:2]) for part in (pooled.relu(), places))
    return pooled, places


def _put_back(places: Tensor, pooled: Tensor) -> Tensor:
    runs, batch, half, _, channels = pooled.shape
    whole = pooled.new_zeros(runs, batch, 4 * half * half, channels)
    kept = pooled * (places >= 0)
    whole = whole.scatter_add(2, places.clamp_min(0).flatten(2, 3), kept.flatten(2, 3))
    return whole.unflatten(2, (2 * half, 2 * half))


def _select(places: Tensor, values: Tensor) -> Tensor:
    found = values.flatten(2, 3).gather(2, places.clamp_min(0).flatten(2, 3)).view_as(places)
    return found * (places >= 0)
