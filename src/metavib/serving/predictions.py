"""A model's answers: of one image for people, of a batch in columns for programs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from metavib.core.errors import UserError

NOT_FINITE = "the model's answer is not finite: its weights are too large for this image"


class NotFiniteError(UserError):
    """The model computed numbers that are not an answer."""


@dataclass(frozen=True)
class Prediction:
    """The answer for one image, and how sure it is."""

    label: str
    probability: float
    probabilities: dict[str, float]  # by class, in the model's order
    entropy: float  # in nats: all uncertainty
    model_entropy: float  # the part of it that comes from disagreeing classifiers
    unsure: bool | None  # more entropy than the coverage allows; None where the model has no thresholds
    classifiers: tuple[tuple[float, ...], ...]  # probabilities under each drawn classifier, where any is
    distances: dict[str, float]  # to the mean feature of each source class; 1 is usual for one's own class
    foreign: bool | None = None  # far from every class; None where the model cannot tell
    labels: tuple[str, ...] | None = None  # the set that holds the right label, where sets were asked for


@dataclass(frozen=True)
class Predictions:
    """The predictions of a batch in columns, one row each. No Python runs for an image until it is asked for."""

    classes: tuple[str, ...]
    probabilities: np.ndarray  # [images, classes]
    entropy: np.ndarray  # [images]
    model_entropy: np.ndarray
    unsure: np.ndarray | None  # where the model has thresholds
    distances: np.ndarray | None  # [images, classes], where the model has class means
    classifiers: np.ndarray | None = None  # [images, draws, classes], where they were asked for
    foreign: np.ndarray | None = None  # [images], where the model was calibrated across domains
    sets: np.ndarray | None = None  # [images, classes]: the labels of each set, where sets were asked for
    from_sources: np.ndarray | None = None  # [images]: how far from every class, where `foreign` is known
    nearest: np.ndarray | None = None  # [images, few]: numbers of examples that the model keeps, -1 for none

    def __len__(self) -> int:
        return len(self.probabilities)

    @property
    def finite(self) -> bool:
        """Whether these are answers. Where a probability is NaN the entropy is, and argmax would name a class."""
        distances = self.distances is None or bool(np.isfinite(self.distances).all())
        return distances and bool(np.isfinite(self.entropy).all())

    def checked(self) -> Predictions:
        """Return these, or raise `NotFiniteError`."""
        if not self.finite:
            raise NotFiniteError(NOT_FINITE)
        return self

    def part(self, rows: slice) -> Predictions:
        """Some of the images."""
        columns: list[Any] = [getattr(self, field.name) for field in fields(self)[1:]]
        parts: list[Any] = [None if own is None else own[rows] for own in columns]
        return Predictions(self.classes, *parts)

    def __iter__(self) -> Iterator[Prediction]:
        """Iterate over the answers, one image at a time."""
        best = self.probabilities.argmax(axis=1)
        rows = zip(
            best.tolist(),
            self.probabilities.tolist(),
            self.entropy.tolist(),
            self.model_entropy.tolist(),
            itertools.repeat(None) if self.unsure is None else self.unsure.tolist(),
            itertools.repeat(()) if self.distances is None else self.distances.tolist(),
            itertools.repeat(()) if self.classifiers is None else self.classifiers.tolist(),
            itertools.repeat(None) if self.foreign is None else self.foreign.tolist(),
            itertools.repeat(None) if self.sets is None else self.sets.tolist(),
            strict=False,
        )
        for index, of_classes, nats, model_nats, unsure, of_means, drawn, foreign, held in rows:
            yield Prediction(
                label=self.classes[index],
                probability=of_classes[index],
                probabilities=dict(zip(self.classes, of_classes, strict=True)),
                entropy=nats,
                model_entropy=model_nats,
                unsure=unsure,
                classifiers=tuple(map(tuple, drawn)),
                distances=dict(zip(self.classes, of_means, strict=False)),
                foreign=foreign,
                labels=None if held is None else tuple(itertools.compress(self.classes, held)),
            )
