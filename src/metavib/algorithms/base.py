"""What every algorithm is: a module whose losses are a pure function of parameters, episode and noise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from metavib.data.episodes import Episode
from metavib.data.storage import Batch
from metavib.functional.predictive import Predictive
from metavib.networks.backbone import Backbone
from metavib.settings import Settings
from metavib.shapes import Float

Noise = Mapping[str, Tensor]  # standard normal draws, by what they are for
Shapes = dict[str, tuple[int, ...]]


class Algorithm(nn.Module, ABC):
    """A backbone h, what the method puts on top of it, its losses and its prediction.

    Nothing here draws a random number, keeps a state between calls or reads a tensor's value, so that the same
    code trains one run, or many runs stacked along a leading axis by `functional_call` and `vmap`.
    """

    Config: type[Settings]
    """The settings of the method."""

    STACKABLE: tuple[str, ...] = ()
    """The settings that may differ between stacked runs: those that are buffers of the module."""

    def __init__(self, backbone: Backbone, classes: int) -> None:
        super().__init__()
        self.backbone = backbone  # h_theta
        self.classes = classes

    def forward(self, episode: Episode, noise: Noise) -> dict[str, Float[Tensor, ""]]:
        """The losses: `functional_call` needs them under this name."""
        return self.losses(episode, noise)

    @abstractmethod
    def losses(self, episode: Episode, noise: Noise) -> dict[str, Float[Tensor, ""]]:
        """Named terms; their sum is the objective, their names are the log's."""

    @abstractmethod
    def noise_shapes(self, meta_train_images: int, meta_test_images: int) -> Shapes:
        """The noise that `losses` takes for an episode of so many images."""

    def begin(self, episode: Episode) -> None:
        """Fit what has to fit the data before the first step; called with the first weights, also on resume."""

    def absorb(self, source: Iterable[Batch]) -> None:
        """Take from all source training samples what prediction needs later."""

    def embed(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch features"]:
        """The part of a prediction that has no draws; it is computed once for all of them."""
        return self.backbone(images)

    @abstractmethod
    def predictive(self, embedded: Float[Tensor, "batch features"], noise: Noise | None) -> Predictive:
        """The prediction from what `embed` gave; without noise every distribution stands at its mean."""

    def class_means(self) -> Float[Tensor, "classes features"] | None:
        """What `embed` gives for the source classes on average; None for a method that does not keep it."""
        return None

    def prediction_noise_shapes(self, batch: int) -> Shapes:
        """The noise that `predictive` takes. A batch of 1 serves any number of images: all see the same draws."""
        return {}


def dropout_shape(backbone: Backbone, images: int) -> Shapes:
    """The noise of the backbone's dropout, where it has any."""
    return {"dropout": (images, sum(backbone.dropout_units))} if backbone.dropout_units else {}
