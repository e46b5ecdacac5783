"""A backbone that keeps its weights: as a whole, or in its first stages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

import torch
from torch import Tensor

from metavib.core.errors import UserError
from metavib.nn.backbone import PIXELS, Backbone


@final
class FixedFeatures(Backbone):
    """Stand-in for a frozen backbone in training: features come in, as images of one pixel, and go out.

    It has no weights, so that a method on it trains what lies on the features alone.
    """

    small = True
    image_size = 1
    normalisation = PIXELS

    scale: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.channels = self.feature_size = size
        self.register_buffer("scale", torch.ones(size), persistent=False)

    @torch.no_grad()
    def measure(self, batches: Iterable[Tensor]) -> None:
        """Take the deviation of these, [some, features] each, as that of all; a constant one counts as it is."""
        count, sums, squares = 0, torch.zeros(()), torch.zeros(())
        for some in batches:
            features = some.double()
            count, sums = count + len(features), sums + features.sum(dim=0)
            squares = squares + features.square().sum(dim=0)
        deviation = (squares / count - (sums / count).square()).clamp_min(0.0).sqrt().to(self.scale)
        self.scale.copy_(torch.where(deviation > 0, deviation, 1.0))

    def input_scale(self) -> Tensor:
        """That of each feature: features have any unit."""
        return self.scale.view(-1, 1, 1)

    def extract(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Tensor:
        return images.flatten(1)


def keep_stages(backbone: Backbone, count: int) -> None:
    """Make constants of the weights of the first stages: buffers, which nothing trains or differentiates by."""
    ends = backbone.stage_ends(torch.zeros(2, backbone.channels, backbone.image_size, backbone.image_size))
    if count > (stages := len(ends)):
        has = f"has {stages} stages" if stages else "has no stages that could be kept alone"
        these = f"--freeze stages=1 to stages={stages}" if stages else "--freeze"
        raise UserError(
            f"stages={count} cannot be frozen: the network {has} before its features. Use {these}"
            + (", or --freeze for the whole network." if stages else ".")
        )
    parameters = dict(backbone.named_parameters())
    found = torch.autograd.grad(ends[count - 1].sum(), list(parameters.values()), allow_unused=True)
    for name in (own for own, slope in zip(parameters, found, strict=True) if slope is not None):
        owner, _, own = name.rpartition(".")
        module = backbone.get_submodule(owner)
        kept = getattr(module, own).detach()
        delattr(module, own)
        module.register_buffer(own, kept)
