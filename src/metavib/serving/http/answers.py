"""The server's answers as types; the description at /openapi.json is made from them."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from metavib.serving.http.jobs import Outcome
from metavib.serving.http.limits import Limits
from metavib.serving.http.refusals import Refusal
from metavib.serving.http.uploads import Upload
from metavib.serving.predictions import Predictions
from metavib.serving.predictor import Predictor


@dataclass(frozen=True)
class NearImage:
    """A training image that the model keeps."""

    label: str
    image: str  # a data URI


@dataclass(frozen=True)
class Answer:
    """The model's answer for one image."""

    image: int  # which image of the request, from 0
    name: str  # its file name, or "image N"
    label: str
    probability: float
    probabilities: dict[str, float]  # by class; the most probable ones only where `top` was asked for
    entropy: float  # in nats: 0 is sure, the logarithm of the number of classes is no idea
    model_entropy: float  # the part of it that comes from disagreeing classifiers
    unsure: bool | None  # more entropy than most source validation images had; null where that is not known
    distances: dict[str, float]  # to the mean of each class of the sources; 1 is usual for one's own class
    foreign: bool | None  # far from every class; null where the model was not calibrated across domains
    labels: list[str] | None  # the set that holds the right label, where the server gives sets
    classifiers: list[dict[str, float]] | None  # probabilities under each drawn one, with samples=true
    nearest: list[NearImage] | None = None  # training images of that class most like it, with nearest=true


@dataclass(frozen=True)
class ImageProblem:
    """One image of several that could not be classified."""

    image: int
    name: str
    status: int  # what it would have been alone
    error: str
    what_to_do: str


@dataclass(frozen=True)
class Reply:
    """The answers for all images of a request, in its order, and the images that have none."""

    predictions: list[Answer]
    problems: list[ImageProblem]


@dataclass(frozen=True)
class State:
    """Whether the server is there, or ready."""

    status: str


@dataclass(frozen=True)
class ModelFacts:
    """Facts of the model, and the limits of the server."""

    algorithm: str
    backbone: str
    classes: list[str]
    source_domains: list[str]
    unseen_domain: str | None  # None where nothing was held out
    coverage: float  # the share of source validation images that counts as sure
    thresholds: dict[str, float | None]  # of the entropy, by mode: above it an answer is `unsure`
    checked_on: int | None  # source validation images that the thresholds rest on
    assurance: str | None  # what `unsure` did on left-out domains; None where the model was not calibrated so
    least_confidence: float | None  # below it an answer is `unsure`, where it was
    modes: list[str]
    image_size: int
    limits: dict[str, float]
    version: str
    examples: int = 0  # training images that the model keeps, to be asked for by nearest=true


def answers_of(
    uploads: Sequence[Upload], outcomes: Sequence[Outcome], top: int | None, samples: bool
) -> dict[str, list[dict[str, Any]]]:
    """A `Reply` in dictionaries: to make dataclasses takes three times as long, and longer than all else here.

    Where there is no prediction at all, the first problem is raised.
    """
    predictions: list[dict[str, Any]] = []
    problems: list[dict[str, Any]] = []
    for upload, outcome in zip(uploads, outcomes, strict=True):
        first = len(predictions) + len(problems)
        named = [
            {"image": at, "name": upload.name or f"image {at + 1}"}
            for at in range(first, first + len(upload))
        ]
        if isinstance(outcome, Refusal):
            said = {"status": outcome.status, "error": outcome.error, "what_to_do": outcome.what_to_do}
            problems += [image | said for image in named]
        else:
            told = zip(named, _told(outcome, top, samples), strict=True)
            predictions += [image | answer for image, answer in told]
    if not predictions:
        raise next(outcome for outcome in outcomes if isinstance(outcome, Refusal)).to_raise()
    return {"predictions": predictions, "problems": problems}


def _told(given: Predictions, top: int | None, samples: bool) -> Iterator[dict[str, Any]]:
    """Return the answer for each image."""
    classes, unknown = given.classes, [None] * len(given)
    for of_classes, nats, model_nats, unsure, of_means, drawn, foreign, held in zip(
        given.probabilities.tolist(),
        given.entropy.tolist(),
        given.model_entropy.tolist(),
        unknown if given.unsure is None else given.unsure.tolist(),
        unknown if given.distances is None else given.distances.tolist(),
        unknown if given.classifiers is None or not samples else given.classifiers.tolist(),
        unknown if given.foreign is None else given.foreign.tolist(),
        unknown if given.sets is None else given.sets.tolist(),
        strict=True,
    ):
        # Not by numpy's argmax: it lets go of Python's lock, and the event loop waits until it has it again.
        highest = max(of_classes)
        probabilities = dict(zip(classes, of_classes, strict=True))
        if top is not None:
            probabilities = dict(sorted(probabilities.items(), key=lambda item: -item[1])[:top])
        by_classifier = [dict(zip(classes, row, strict=True)) for row in drawn or ()]
        yield {
            "label": classes[of_classes.index(highest)],
            "probability": highest,
            "probabilities": probabilities,
            "entropy": nats,
            "model_entropy": model_nats,
            "unsure": unsure,
            "distances": dict(zip(classes, of_means, strict=True)) if of_means else {},
            "foreign": foreign,
            "labels": None if held is None else list(itertools.compress(classes, held)),
            "classifiers": by_classifier if samples else None,
        }


def facts_of(predictors: dict[str, Predictor], limits: Limits, version: str, examples: int = 0) -> ModelFacts:
    """Return the answer of /model."""
    predictor = next(iter(predictors.values()))
    description, assurance = predictor.description, predictor.assurance
    return ModelFacts(
        algorithm=description.algorithm,
        backbone=description.backbone,
        classes=list(description.classes),
        source_domains=list(description.source_domains),
        unseen_domain=description.unseen_domain,
        coverage=predictor.coverage,
        thresholds={mode: own.threshold for mode, own in predictors.items()},
        checked_on=predictor.checked_on,
        assurance=None if assurance is None else assurance.in_words(),
        least_confidence=None if assurance is None else assurance.promise.threshold,
        modes=list(predictors),
        image_size=predictor.preprocessing.size,
        limits=dict(vars(limits)),
        version=version,
        examples=examples,
    )
