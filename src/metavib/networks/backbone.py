"""What every backbone h is: a pure function from images to features.

It keeps no running statistics and draws nothing (the noise of dropout is an input), so that
`torch.func.functional_call` and `vmap` can train many at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torchvision import models

from metavib.processes.division import Division, copied, gathered, sliced
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
    stage_sizes: tuple[int, ...] = ()  # channels of what `at_stages` hands out before the features
    image_size: int  # side of the square input
    channels: int
    normalisation: Normalisation
    dropout_units: tuple[int, ...] = ()  # widths of its dropout layers; each drops half of its units
    small: bool = False  # one run alone leaves a GPU idle
    precision: torch.dtype | None = None  # autocast to it (bfloat16) when set
    twice_differentiable: bool = False  # then by kernels that have second derivatives

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
        *_, features = self._in_all_processes(images, dropout, at_stages=False)
        return features

    @final
    def at_stages(
        self,
        images: Float[Tensor, "own channels height width"],
        dropout: Float[Tensor, "batch units"] | None = None,
    ) -> tuple[Float[Tensor, "batch ..."], ...]:
        """Maps or units on the way, as many as `stage_sizes` says, and the features last."""
        return self._in_all_processes(images, dropout, at_stages=True)

    def _in_all_processes(
        self, images: Tensor, dropout: Tensor | None, *, at_stages: bool
    ) -> tuple[Tensor, ...]:
        if self.division is None:
            return self.of_these(images, dropout, at_stages=at_stages)
        own_images = sliced(images, self.division) if self.division.whole_images else images
        own_dropout = None if dropout is None else self.division.own_rows(dropout)
        parameters = {f"backbone.{name}": own for name, own in self.named_parameters()}
        given = (own_images, own_dropout, at_stages)
        own = functional_call(_Undivided(self), copied(parameters), given)
        return tuple(gathered(one, self.division) for one in own)

    @final
    def of_these(self, images: Tensor, dropout: Tensor | None, *, at_stages: bool) -> tuple[Tensor, ...]:
        """The features of these images by themselves, or all stages."""
        with self._in_its_precision(images):
            if at_stages:
                return tuple(map(_at_least_single, self.stages(images, self._masks(dropout))))
            return (_at_least_single(self.extract(images, self._masks(dropout))),)

    @abstractmethod
    def extract(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Tensor:
        """Features of the images; one mask for each of `dropout_units`, to be given to `drop`."""

    def stages(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Iterator[Tensor]:
        """What `at_stages` hands out; of a network that says nothing about its stages, the features alone."""
        yield self.extract(images, masks)

    def initialise_as_torch_does(self) -> None:
        """Draw all weights again, the way that torch's own layers begin."""
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.reset_parameters()

    def input_scale(self) -> float | Tensor:
        """The deviation of the inputs: images come normalised."""
        return 1.0

    def freeze_normalisation(self) -> None:
        """Make place for the statistics that pre-trained weights bring along; most networks have none."""

    def _masks(self, dropout: Tensor | None) -> tuple[Tensor | None, ...]:
        if dropout is None:
            return (None,) * len(self.dropout_units)
        return torch.split(dropout > 0, list(self.dropout_units), dim=1)

    def _in_its_precision(self, images: Tensor) -> AbstractContextManager[Any]:
        # A disabled autocast would do too, but torch.export leaves it in the graph as an operator of its own.
        return torch.autocast(images.device.type, dtype=self.precision) if self.precision else nullcontext()


class Staged(Backbone):
    """A backbone that computes stage by stage, and can hand out what it has on the way."""

    @abstractmethod
    def stages(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Iterator[Tensor]:
        """Maps or units after each stage, and the features last."""

    @final
    def extract(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Tensor:
        return deque(self.stages(images, masks), maxlen=1).pop()  # the others are freed on the way


def _at_least_single(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


class _Undivided(nn.Module):
    """A backbone by its `of_these`, where `functional_call` finds it."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor, dropout: Tensor | None, at_stages: bool) -> tuple[Tensor, ...]:
        return self.backbone.of_these(images, dropout, at_stages=at_stages)


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
