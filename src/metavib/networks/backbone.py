"""What every backbone h is: a pure function from images to features.

It keeps no running statistics and draws nothing (the noise of dropout is an input), so that
`torch.func.functional_call` and `vmap` can train many at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torchvision import models

from metavib.processes.division import Division, copied, gathered
from metavib.shapes import Float


@final
class Normalisation(NamedTuple):
    """What a network subtracts from, and divides, the pixels by, once they are scaled to [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


PIXELS = Normalisation(mean=(0.0,), std=(1.0,))
IMAGENET = Normalisation(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


class Backbone(nn.Module, ABC):
    """h: images -> features. Pure: no running statistics, no random state."""

    feature_size: int
    image_size: int  # side of the square input
    channels: int
    normalisation: Normalisation
    dropout_units: tuple[int, ...] = ()  # widths of its dropout layers; each drops half of its units
    small: bool = False  # one run alone leaves a GPU idle
    precision: torch.dtype | None = None  # autocast to it (bfloat16) when set
    twice_differentiable: bool = (
        False  # then by torch's operators alone: our kernels have no second derivative
    )

    imagenet_weights: models.WeightsEnum | None = None  # where torchvision has the network trained
    head_keys: tuple[str, ...] = ("classifier.", "fc.")  # of a file of weights, and not ours to load

    division: Division | None = None  # among processes: then the images are this one's own, the features all

    @final  # type: ignore[misc]  # nn.Module declares forward as a variable
    def forward(
        self,
        images: Float[Tensor, "own channels height width"],
        dropout: Float[Tensor, "batch units"] | None = None,
    ) -> Float[Tensor, "batch features"]:
        """Features in float32, or in the images' float64.

        `dropout` is standard normal noise, one draw for each of `dropout_units`: a unit is kept where its
        draw is positive. Without it nothing is dropped.
        """
        if self.division is None:
            return self.features_of(images, dropout)
        own_dropout = None if dropout is None else self.division.own_rows(dropout)
        parameters = {f"backbone.{name}": own for name, own in self.named_parameters()}
        own = functional_call(_Undivided(self), copied(parameters), (images, own_dropout))
        return gathered(own, self.division)

    @final
    def features_of(
        self,
        images: Float[Tensor, "batch channels height width"],
        dropout: Float[Tensor, "batch units"] | None = None,
    ) -> Float[Tensor, "batch features"]:
        """`forward` of these images by themselves."""
        # A disabled autocast would do too, but torch.export leaves it in the graph as an operator of its own.
        context = (
            torch.autocast(images.device.type, dtype=self.precision) if self.precision else nullcontext()
        )
        with context:
            features = self.extract(images, self._masks(dropout))
        return features.to(torch.promote_types(features.dtype, torch.float32))

    @abstractmethod
    def extract(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Tensor:
        """Features of the images; one mask for each of `dropout_units`, to be given to `drop`."""

    def initialise_as_torch_does(self) -> None:
        """Draw all weights again, the way that torch's own layers begin."""
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.reset_parameters()

    def freeze_normalisation(self) -> None:
        """Make place for the statistics that pre-trained weights bring along; most networks have none."""

    def _masks(self, dropout: Tensor | None) -> tuple[Tensor | None, ...]:
        if dropout is None:
            return (None,) * len(self.dropout_units)
        return torch.split(dropout > 0, list(self.dropout_units), dim=1)


class _Undivided(nn.Module):
    """A backbone by its `features_of`, where `functional_call` finds it."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor, dropout: Tensor | None) -> Tensor:
        return self.backbone.features_of(images, dropout)


@contextmanager
def divided(backbone: Backbone, division: Division | None) -> Iterator[None]:
    """Inside, the backbone is given a process's own images and gives the features of all."""
    former, backbone.division = backbone.division, division
    try:
        yield
    finally:
        backbone.division = former


def drop(units: Tensor, mask: Tensor | None) -> Tensor:
    """Inverted dropout at one half, AlexNet's rate: kept units count twice, so that the mean is unchanged."""
    return units if mask is None else units * mask * 2
