"""What the kernels of the digit network compute, by torch, for machines without a GPU."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from metavib import kernels
from metavib.functional import pooled_convolution as kernel_layer


def kernels_stand_in(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Let the digit network go the way of the kernels, which has no second derivative; counts the ways back."""
    monkeypatch.setattr(kernels, "serve", lambda device: True)
    monkeypatch.setattr(kernel_layer, "_forward", _forward)
    backward = Mock(side_effect=_backward)
    monkeypatch.setattr(kernel_layer, "_backward", backward)
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
