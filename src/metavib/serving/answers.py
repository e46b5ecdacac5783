"""What the server answers, as types; the description at /openapi.json is made from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metavib.serving.batching import Outcome
from metavib.serving.limits import Limits
from metavib.serving.predictions import Prediction
from metavib.serving.predictor import Predictor
from metavib.serving.refusals import Refusal
from metavib.serving.uploads import Upload


@dataclass(frozen=True)
class Answer:
    """What the model says of one image."""

    image: int  # which image of the request, from 0
    name: str  # its file name, or "image N"
    label: str
    probability: float
    probabilities: dict[str, float]  # by class; the most probable ones only where `top` was asked for
    entropy: float  # in nats: 0 is sure, the logarithm of the number of classes is no idea
    model_entropy: float  # the part of it that comes from disagreeing classifiers
    unsure: bool | None  # more entropy than most source validation images had; null where that is not known
    distances: dict[str, float]  # to the mean of each class of the sources; 1 is usual for one's own class
    classifiers: (
        list[dict[str, float]] | None
    )  # the probabilities under each drawn classifier, with samples=true


@dataclass(frozen=True)
class ImageProblem:
    """One image of several that could not be classified."""

    image: int
    name: str
    status: int  # what it would have been alone
    error: str
    what_to_do: str


@dataclass(frozen=True)
class Answers:
    """The answers for all images of a request, in its order, and the images that have none."""

    predictions: list[Answer]
    problems: list[ImageProblem]


@dataclass(frozen=True)
class State:
    """Whether the server is there, or ready."""

    status: str


@dataclass(frozen=True)
class ModelFacts:
    """What the model is, and what the server takes."""

    algorithm: str
    backbone: str
    classes: list[str]
    source_domains: list[str]
    unseen_domain: str
    coverage: float  # the share of source validation images that counts as sure
    thresholds: dict[str, float | None]  # of the entropy, by mode: above it an answer is `unsure`
    modes: list[str]
    image_size: int
    limits: dict[str, float]
    version: str


def answers_of(
    uploads: Sequence[Upload], outcomes: Sequence[Outcome], top: int | None, samples: bool
) -> Answers:
    """Predictions and problems; where there is no prediction at all, the first problem is raised."""
    predictions: list[Answer] = []
    problems: list[ImageProblem] = []
    for upload, outcome in zip(uploads, outcomes, strict=True):
        first = len(predictions) + len(problems)
        numbered = [
            (number, upload.name or f"image {number + 1}") for number in range(first, first + len(upload))
        ]
        if isinstance(outcome, Refusal):
            problems += [
                ImageProblem(index, name, outcome.status, outcome.error, outcome.what_to_do)
                for index, name in numbered
            ]
        else:
            predictions += [
                _answer(index, name, given, top, samples)
                for (index, name), given in zip(numbered, outcome, strict=True)
            ]
    if not predictions:
        raise next(outcome for outcome in outcomes if isinstance(outcome, Refusal))
    return Answers(predictions, problems)


def _answer(index: int, name: str, given: Prediction, top: int | None, samples: bool) -> Answer:
    probabilities = given.probabilities
    if top is not None:
        best = sorted(probabilities.items(), key=lambda item: -item[1])[:top]
        probabilities = dict(best)
    drawn = None
    if samples:
        drawn = [dict(zip(given.probabilities, row, strict=True)) for row in given.classifiers]
    return Answer(
        image=index,
        name=name,
        label=given.label,
        probability=given.probability,
        probabilities=probabilities,
        entropy=given.entropy,
        model_entropy=given.model_entropy,
        unsure=given.unsure,
        distances=given.distances,
        classifiers=drawn,
    )


def facts_of(predictors: dict[str, Predictor], limits: Limits, version: str) -> ModelFacts:
    """What /model says."""
    predictor = next(iter(predictors.values()))
    description = predictor.description
    return ModelFacts(
        algorithm=description.algorithm,
        backbone=description.backbone,
        classes=list(description.classes),
        source_domains=list(description.source_domains),
        unseen_domain=description.unseen_domain,
        coverage=predictor.coverage,
        thresholds={mode: own.threshold for mode, own in predictors.items()},
        modes=list(predictors),
        image_size=predictor.preprocessing.size,
        limits=dict(vars(limits)),
        version=version,
    )
