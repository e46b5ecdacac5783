"""Normalisation that looks at one image at a time, in place of batch normalisation.

Batch statistics would make the features of one image depend on the others. With pre-trained weights their running
statistics become constants while the affine parameters are trained, as DomainBed does. From scratch GroupNorm
takes their place, because frozen random statistics do not normalise.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

MOST_GROUPS = 32
LEAST_CHANNELS = 8  # of a group: one of a single value would give zero whatever the value is


@final
class FrozenBatchNorm(nn.Module):
    """Batch normalisation by constant statistics: y = weight (x - mean) / sqrt(variance + eps) + bias.

    `act` is the activation that some networks of timm have in the same layer.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self, channels: int, eps: float = 1e-5, act: nn.Module | None = None, *, affine: bool = True
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels)) if affine else None
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.act = nn.Identity() if act is None else act

    def forward(self, maps: Tensor) -> Tensor:
        # Not F.batch_norm: under vmap it refuses bfloat16 maps with float32 parameters.
        scale = (self.running_var + self.eps).rsqrt()
        if self.weight is not None:
            scale = self.weight * scale
        shift = -self.running_mean * scale
        if self.bias is not None:
            shift = self.bias - self.running_mean * scale
        by_channel = (-1, *(1,) * (maps.dim() - 2))
        return self.act((maps * scale.view(by_channel) + shift.view(by_channel)).to(maps.dtype))


@final
class GroupedNorm(nn.GroupNorm):
    """GroupNorm where a network that is trained from scratch had batch normalisation; `batch_eps` was its eps."""

    def __init__(
        self,
        channels: int,
        batch_eps: float = 1e-5,
        act: nn.Module | None = None,
        *,
        affine: bool = True,
    ) -> None:
        super().__init__(groups_of(channels), channels, affine=affine)
        self.batch_eps = batch_eps
        self.act = nn.Identity() if act is None else act

    def forward(self, maps: Tensor) -> Tensor:
        return self.act(super().forward(maps))

    def frozen(self) -> FrozenBatchNorm:
        """A FrozenBatchNorm of these channels, for pre-trained weights that bring statistics along."""
        made = FrozenBatchNorm(self.num_channels, self.batch_eps, self.act, affine=self.affine)
        return made.to(self.weight) if self.affine else made


def groups_of(channels: int) -> int:
    """Into how many groups channels are divided: at most 32, of eight channels or more."""
    most = min(MOST_GROUPS, max(1, channels // LEAST_CHANNELS))
    return next(groups for groups in range(most, 0, -1) if channels % groups == 0)
