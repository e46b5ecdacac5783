"""What is not the kernels' own; tests/kernels compares the whole with torch's operators."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from metavib.nn.kernels import repeated_derivatives as module

pytestmark = pytest.mark.kernels


def test_turned_weights_carry_a_gradient_back_to_the_inputs() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, 3, 6, 6, dtype=torch.float64, generator=generator, requires_grad=True)
    weight = torch.randn(4, 3, 3, 3, dtype=torch.float64, generator=generator)
    gradient = torch.randn(2, 4, 6, 6, dtype=torch.float64, generator=generator)
    (expected,) = torch.autograd.grad(nn.functional.conv2d(images, weight, padding=1), images, gradient)
    found = nn.functional.conv2d(gradient, module._turned(weight), padding=1)
    torch.testing.assert_close(found, expected)
    assert module._turned(module._turned(weight)).equal(weight)


def test_grey_images_get_channels_of_nothing_beside_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []

    class Convolution:
        @staticmethod
        def apply(maps: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            seen.extend((maps, weight))
            return nn.functional.conv2d(maps.movedim(-1, 1), weight, bias, padding=1).movedim(1, -1)

    class Pool:
        @staticmethod
        def apply(values: Tensor) -> tuple[Tensor, None]:
            return nn.functional.max_pool2d(values.movedim(-1, 1), 3, 2, 1).relu().movedim(1, -1), None

    monkeypatch.setattr(module, "_Convolution", Convolution)
    monkeypatch.setattr(module, "_Pool", Pool)
    images, weight, bias = torch.randn(2, 1, 8, 8), torch.randn(16, 1, 3, 3), torch.randn(16)
    found = module.pooled_convolution_of_any_order(images, weight, bias, torch.float32)
    expected = nn.functional.max_pool2d(nn.functional.conv2d(images, weight, bias, padding=1), 3, 2, 1).relu()
    torch.testing.assert_close(found, expected)
    maps, padded = seen
    assert maps.shape == (2, 8, 8, 16)
    assert padded.shape == (16, 16, 3, 3)
    assert not maps[..., 1:].any()
    assert not padded[:, 1:].any()
