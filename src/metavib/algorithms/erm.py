"""Empirical risk minimisation (Vapnik 1998): one softmax classifier on the pooled source domains.

The "AlexNet" row of the paper's tables.

Objective: mean over the samples of all domains of an episode of - log softmax_c(w_c . h(x) + b_c)[y].
Deviations: none. It sees the episodes that the meta-learning methods see and makes no difference between
meta-train and meta-test, so that all methods get the same images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from metavib.algorithms.base import Noise, SoftmaxClassifier
from metavib.core.settings import Settings
from metavib.core.shapes import Float
from metavib.data.episodes import Episode
from metavib.nn.backbone import Backbone


@final
class ERM(SoftmaxClassifier):
    """A softmax classifier on the backbone's features."""

    title = "ERM"
    paper = "Vapnik 1998"

    @dataclass(frozen=True)
    class Config(Settings):
        """ERM has no settings of its own."""

    SPLITS_DOMAINS = False
    LEAST_DOMAINS = 1

    def __init__(self, backbone: Backbone, classes: int, config: Config) -> None:
        super().__init__(backbone, classes)

    def losses(self, episode: Episode, noise: Noise) -> dict[str, Float[Tensor, ""]]:
        """Cross-entropy on every image of the episode."""
        images = torch.cat([episode.meta_train.flat_images(), episode.meta_test.flat_images()])
        labels = torch.cat([episode.meta_train.flat_labels(), episode.meta_test.flat_labels()])
        logits = self.classifier(self.backbone(images, noise.get("dropout")))
        return {"classification": nn.functional.cross_entropy(logits, labels)}
