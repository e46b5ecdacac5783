"""Deep CORAL for several sources: ERM whose features have the same mean and covariance in every domain.

Sun and Saenko, "Deep CORAL", ECCV Workshops 2016.

Objective: cross-entropy + weight * mean over pairs of domains of ||m_i - m_j||^2 / d + ||C_i - C_j||^2 / 4 d^2.
Deviations: the paper has one source and one target and aligns covariances alone; the means are added.
"""

import itertools
import sys
from dataclasses import dataclass

import torch
from torch import nn

from metavib.algorithms import ALGORITHMS
from metavib.algorithms.base import SoftmaxClassifier
from metavib.core.settings import Settings, setting
from metavib.interfaces.cli.main import main


class CORAL(SoftmaxClassifier):
    """ERM with features that are alike in every domain."""

    title = "CORAL"
    paper = "Sun and Saenko, ECCV Workshops 2016"

    @dataclass(frozen=True)
    class Config(Settings):
        """How much the domains' features have to be alike."""

        weight: float = setting(1.0, "weight of the alignment", minimum=0)

    STACKABLE = ("weight",)

    def __init__(self, backbone, classes, config):
        super().__init__(backbone, classes)
        self._register_stackable(config)

    def losses(self, episode, noise):
        """Cross-entropy, and how far the domains' features differ."""
        images = torch.cat([episode.meta_train.flat_images(), episode.meta_test.flat_images()])
        labels = torch.cat([episode.meta_train.labels, episode.meta_test.labels])  # [domains, images]
        features = self.backbone(images, noise.get("dropout"))
        classification = nn.functional.cross_entropy(self.classifier(features), labels.flatten())
        pairs = itertools.combinations(features.unflatten(0, labels.shape), 2)
        alignment = torch.stack([difference(one, other) for one, other in pairs]).mean()
        return {"classification": classification, "alignment": self.weight * alignment}


def difference(one, other):
    """||m_1 - m_2||^2 / d + ||C_1 - C_2||^2 / 4 d^2 of two sets of features [images, d]."""
    size = one.shape[1]
    means = (one.mean(dim=0) - other.mean(dim=0)).square().sum() / size
    return means + (one.T.cov() - other.T.cov()).square().sum() / (4 * size**2)


ALGORITHMS["coral"] = CORAL

if __name__ == "__main__":
    sys.exit(main())
