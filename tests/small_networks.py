"""Networks of one's own, as users write them, for images of 32 pixels; and such as cannot be made pure."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import metavib

SIDE = 32


class Plain(nn.Module):
    """Convolution, normalisation by batches, activation in place, pooling, dropout."""

    def __init__(self, channels: int = 3, width: int = 16) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, width, 3, stride=2, padding=1)
        self.normalised = nn.BatchNorm2d(width)
        self.activation = nn.ReLU(inplace=True)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.5)
        self.last = nn.Linear(width, 8)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.activation(self.normalised(self.convolution(images)))
        return self.last(self.dropout(self.pool(maps).flatten(1)))


def plain() -> nn.Module:
    return Plain()


def wrapped() -> nn.Module:
    return metavib.Backbone.of(Plain(1), image_size=28)


class Faulty(Plain):
    """This network with a layer that must be refused."""

    def __init__(self, fault: str) -> None:
        super().__init__(2 if fault == "channels" else 3)
        self.fault = fault
        self.odd = Odd(fault)

    def forward(self, images: Tensor) -> Any:
        if self.fault == "maps":
            return self.convolution(images)
        features = self.odd(super().forward(images))
        return (features, features) if self.fault == "pair" else features


class Odd(nn.Module):
    """A layer that keeps, draws, mixes or breaks."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, units: Tensor) -> Tensor:
        match self.fault:
            case "state" if self.training:
                self.seen.add_(1)
            case "draws":
                return units + torch.randn_like(units)
            case "dropout":
                return nn.functional.dropout(units, 0.5, self.training)
            case "mixes":
                return units - units.mean(0, keepdim=True)
            case "nan":
                return units / torch.zeros_like(units)
            case "width" if not self.training:
                return units[:, :4]
        return units


def maps() -> nn.Module:
    return Faulty("maps")


def two_channels() -> nn.Module:
    return Faulty("channels")


def not_finite() -> nn.Module:
    return Faulty("nan")


def other_width() -> nn.Module:
    return Faulty("width")


def no_module() -> str:
    return "a network"


def fails() -> nn.Module:
    raise RuntimeError("no such file")


class Once(torch.autograd.Function):
    """Has a first derivative alone, and no rule for vmap."""

    @staticmethod
    def forward(ctx: object, values: Tensor) -> Tensor:
        return values * 2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: object, given: Tensor) -> Tensor:
        return given * 2


class OnceOnly(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return Once.apply(values)


class Rare(Plain):
    """A network that can be trained, but not differentiated twice and not stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.rare = OnceOnly()

    def forward(self, images: Tensor) -> Tensor:
        return self.rare(super().forward(images)).square()
