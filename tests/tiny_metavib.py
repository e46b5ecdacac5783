"""MetaVIB and its ablations on three features of four pixels, in float64, and episodes for them."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

from metavib.algorithms.inferred import ProbabilisticClassifier
from metavib.algorithms.metavib import MetaVIB
from metavib.data.episodes import Episode, Samples
from metavib.nn.backbone import PIXELS, Backbone

CLASSES = 3
TRAIN, TEST = torch.tensor([[0, 1, 2, 0, 1], [2, 2, 1, 0, 0]]), torch.tensor([[0, 1, 2, 2, 1]])
WITHOUT_CLASS_2 = torch.tensor([[0, 1, 1, 0, 1], [1, 0, 1, 0, 0]])


@final
class Tiny(Backbone):
    """Three features of 2 x 2 pixels."""

    feature_size = 3
    image_size = 2
    channels = 1
    normalisation = PIXELS

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def extract(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Tensor:
        return self.linear(images.flatten(1)).tanh()


def built(kind: Any = MetaVIB, classes: int = CLASSES, **values: Any) -> Any:
    small = {"latent_width": 4, "latent_draws": 2, "classifier_draws": 3, "initial_log_variance": -1.0}
    torch.manual_seed(0)
    return kind(Tiny(), classes, kind.Config(**(small | values))).double()


def episode_of(train: Tensor = TRAIN, test: Tensor = TEST, *, seed: int = 0) -> Episode:
    generator = torch.Generator().manual_seed(seed)

    def samples(labels: Tensor, first: int) -> Samples:
        images = torch.randn(*labels.shape, 1, 2, 2, dtype=torch.float64, generator=generator)
        return Samples(images, labels, torch.arange(first, first + len(labels)))

    return Episode(samples(train, 1), samples(test, 0))


def noise_for(algorithm: ProbabilisticClassifier, episode: Episode) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(9)
    shapes = algorithm.noise_shapes(
        episode.meta_train.labels.numel(), len(episode.meta_test.flat_labels())
    ).items()
    return {
        purpose: torch.randn(shape, dtype=torch.float64, generator=generator) for purpose, shape in shapes
    }


def losses_of(algorithm: ProbabilisticClassifier, episode: Episode) -> dict[str, Tensor]:
    return algorithm.losses(episode, noise_for(algorithm, episode))
