"""Bias, ReLU, joining and pooling in torch's operators; tests/kernels compares them with the kernels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from metavib.nn.kernels.fused_activation import activated

pytestmark = pytest.mark.kernels


def example(side: int = 7, dtype: torch.dtype = torch.float64) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    shapes = [((2, 3, side, side), (3,)), ((2, 4, side, side), (4,))]
    return [
        tuple(torch.randn(shape, dtype=dtype, generator=generator) for shape in pair)  # type: ignore[misc]
        for pair in shapes
    ]


@pytest.mark.parametrize(("side", "half"), [(7, 3), (8, 4)])
def test_it_is_bias_then_relu_then_joining_then_pooling(side: int, half: int) -> None:
    parts = example(side)
    usual = torch.cat([nn.ReLU()(maps + bias[:, None, None]) for maps, bias in parts], dim=1)
    torch.testing.assert_close(activated(parts), usual)
    pooled = activated(parts, pooled=True)
    assert pooled.shape == (2, 7, half, half)
    torch.testing.assert_close(pooled, nn.MaxPool2d(3, stride=2, ceil_mode=True)(usual))


def test_the_precision_of_the_maps_is_kept() -> None:
    parts = [(maps.bfloat16(), bias.float()) for maps, bias in example()]
    assert activated(parts, pooled=True).dtype == torch.bfloat16


@pytest.mark.parametrize("pooled", [False, True])
def test_gradients_in_float64(pooled: bool) -> None:
    parts = [tensor.requires_grad_() for part in example(5) for tensor in part]

    def joined(*given: Tensor) -> Tensor:
        return activated(list(zip(given[::2], given[1::2], strict=True)), pooled=pooled)

    assert torch.autograd.gradcheck(joined, parts)
    assert torch.autograd.gradgradcheck(joined, parts)
