"""The backbone for features that are not images: fully connected layers on standardised inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor, nn

from metavib.core.shapes import Float
from metavib.nn.backbone import PIXELS, Staged


@final
class MLP(Staged):
    """Two fully connected layers with ReLU. A row of features is an image of one pixel with as many channels.

    The model keeps what its inputs are standardised by, so that it takes features as they come.
    """

    small = True
    image_size = 1
    normalisation = PIXELS

    centre: Tensor
    scale: Tensor

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.channels, self.feature_size, self.stage_sizes = inputs, width, (width,)
        # float64: features of 1e9 that differ in their last digits are all alike in float32.
        self.register_buffer("centre", torch.zeros(inputs, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(inputs, dtype=torch.float64))
        self.hidden_1 = nn.Linear(inputs, width)
        self.hidden_2 = nn.Linear(width, width)
        for layer in (self.hidden_1, self.hidden_2):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")  # the digit network says why
            nn.init.zeros_(layer.bias)

    @torch.no_grad()
    def standardise_by(self, features: Float[Tensor, "count inputs"]) -> None:
        """Take the mean and deviation of these features as those of all inputs; a constant one is centred only."""
        features = features.to(self.centre)
        largest = features.abs().amax(dim=0)
        # The square of 1e300 is infinite and that of 1e-300 is zero. A power of two changes no digit.
        unit = torch.ones_like(largest).masked_fill(largest > 1e100, 2.0**600)
        unit = unit.masked_fill(largest < 1e-100, 2.0**-600)
        features, largest = features / unit, largest / unit
        deviation = features.std(dim=0, correction=0)
        # Rounding alone makes a constant feature deviate; divided by that, another value would be huge.
        varies = deviation > 1e-12 * largest
        self.centre.copy_(features.mean(dim=0) * unit)
        self.scale.copy_(torch.where(varies, deviation * unit, 1.0))

    def input_scale(self) -> Tensor:
        """That of each feature, which comes as it is."""
        return self.scale.view(-1, 1, 1)

    def stages(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Iterator[Tensor]:
        units = self.hidden_1(self.standardised(images)).relu()
        yield units
        yield self.hidden_2(units).relu()

    def standardised(self, images: Float[Tensor, "batch inputs 1 1"]) -> Float[Tensor, "batch inputs"]:
        """The features as the first layer sees them."""
        units = (images.flatten(1).to(self.centre.dtype) - self.centre) / self.scale
        return units.to(self.hidden_1.weight.dtype)
