"""Predictions from a model directory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from metavib.algorithms.base import Algorithm
from metavib.data.images import decode, read
from metavib.data.transforms import with_channels
from metavib.device import resolve_device
from metavib.errors import UserError
from metavib.model import ModelDescription, load_model, preprocessing_of
from metavib.randomness import key_of, normal

BATCH = 64


@dataclass(frozen=True)
class Prediction:
    """The answer for one image, and how sure it is."""

    label: str
    probability: float
    probabilities: dict[str, float]
    entropy: float  # in nats: all uncertainty
    model_entropy: float  # the part of it that comes from disagreeing classifiers


class Predictor:
    """A trained model, ready to classify.

    Every image sees the same draws, which depend on the seed alone: an answer does not depend on the images
    beside it.
    """

    def __init__(
        self, algorithm: Algorithm, description: ModelDescription, device: torch.device, seed: int = 0
    ) -> None:
        self.algorithm, self.description, self.device = algorithm, description, device
        self.preprocessing = preprocessing_of(algorithm.backbone)
        self.noise = {
            purpose: normal(key_of(seed, "prediction", purpose), shape, device)
            for purpose, shape in algorithm.prediction_noise_shapes(1).items()
        }

    @property
    def classes(self) -> tuple[str, ...]:
        """The names that an answer can have."""
        return self.description.classes

    def open(self, path: str | Path) -> np.ndarray:
        """The pixels of an image file as the model takes them."""
        return decode(read(Path(path), str(path)), str(path), self.preprocessing.size)

    @torch.no_grad()
    def predict(self, images: Iterable[np.ndarray]) -> list[Prediction]:
        """Answers for images as `open` gives them: uint8 [channels, size, size]."""
        pixels = with_channels(np.stack(list(images)), self.preprocessing.channels)
        batch = self.preprocessing(torch.from_numpy(np.ascontiguousarray(pixels)).to(self.device))
        answer = self.algorithm.predictive(self.algorithm.embed(batch), self.noise or None)
        rows = zip(
            answer.probabilities().tolist(),
            answer.entropy().tolist(),
            answer.model_entropy().tolist(),
            strict=True,
        )
        return [self._prediction(*row) for row in rows]

    def predict_files(self, paths: Iterable[str | Path]) -> Iterator[tuple[str, Prediction]]:
        """Answers for files, in order, some at a time."""
        waiting: list[tuple[str, np.ndarray]] = []
        for path in paths:
            waiting.append((str(path), self.open(path)))
            if len(waiting) == BATCH:
                yield from self._answers(waiting)
                waiting = []
        if waiting:
            yield from self._answers(waiting)

    def _answers(self, waiting: list[tuple[str, np.ndarray]]) -> Iterator[tuple[str, Prediction]]:
        names, images = zip(*waiting, strict=True)
        yield from zip(names, self.predict(images), strict=True)

    def _prediction(self, probabilities: list[float], entropy: float, model_entropy: float) -> Prediction:
        best = max(range(len(probabilities)), key=probabilities.__getitem__)
        named = dict(zip(self.classes, probabilities, strict=True))
        return Prediction(self.classes[best], probabilities[best], named, entropy, model_entropy)


def load(path: str | Path, *, device: str = "auto", seed: int = 0) -> Predictor:
    """The predictor of a model directory, or of the run directory around it."""
    if not Path(path).is_dir():
        raise UserError(f"there is no model directory {path}.")
    where = resolve_device(device)
    algorithm, description = load_model(Path(path), where)
    return Predictor(algorithm, description, where, seed)
