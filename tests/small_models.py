"""Models of two classes with random weights, for tests that need one on disk."""

from __future__ import annotations

from typing import Any

import torch

from metavib.algorithms import ALGORITHMS, create
from metavib.algorithms.base import Algorithm
from metavib.algorithms.inferred import ProbabilisticClassifier
from metavib.models.directory import ModelDescription, TakenImages
from metavib.nn.backbones import DigitNetwork


def built(name: str) -> Algorithm:
    torch.manual_seed(0)
    algorithm = create(name, DigitNetwork(), 2, 3, ALGORITHMS[name].Config())
    if isinstance(
        algorithm, ProbabilisticClassifier
    ):  # what they predict with comes from the training images
        algorithm.keep(0.1 * torch.randn(2, algorithm.backbone.feature_size))
    return algorithm


def described(name: str, **changes: Any) -> ModelDescription:
    values: dict[str, Any] = {
        "algorithm": name,
        "method": {},
        "backbone": "digits",
        "frozen_normalisation": False,
        "classes": ("cat", "dog"),
        "source_domains": ("a", "b", "c"),
        "unseen_domain": "d",
        "preprocessing": TakenImages(28, 1, (0.0,), (1.0,)),
        "seed": 0,
        "experiment": "e",
        "split": "s",
    }
    return ModelDescription(**(values | changes))
