"""Measuring a model by the paper's protocol: repeats of Monte Carlo predictions, and their spread."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from metavib.algorithms.base import Algorithm, Noise
from metavib.core.device import widest_float
from metavib.core.errors import UserError
from metavib.core.processes.group import ALONE, Processes
from metavib.core.settings import Settings, setting
from metavib.core.shapes import Float, Int
from metavib.data.episodes import Source
from metavib.data.opening import LabelledRows
from metavib.data.store.storage import Batch
from metavib.models.measures import MEASURES
from metavib.models.metrics import Scores, per_class_accuracy, scored
from metavib.models.results import ClassAccuracies, Measurement, Spread
from metavib.nn.backbone import divided
from metavib.nn.randomness import fold, key_of, normal

CHUNK = 256  # images whose draws are in memory at one time
MOST_VALUES = 2**25  # of all draws of a chunk, or of probabilities that are judged at one time: 128 MiB
LARGEST_LOSS = torch.finfo(torch.float32).max  # of a model gone astray: a record holds finite numbers only


@dataclass(frozen=True)
class Evaluation(Settings):
    """How a trained model is measured."""

    repeats: int = setting(
        20, "predictions with fresh draws; results are their mean and deviation", minimum=1
    )


@dataclass(frozen=True)
class Embedded:
    """Images of which all but the draws is computed, with their labels."""

    features: Float[Tensor, "count features"]
    labels: Int[Tensor, "count"]


class AstrayError(UserError):
    """Predicted probabilities are not finite."""


def batches_of(
    images: Source | LabelledRows, algorithm: Algorithm, processes: Processes = ALONE
) -> Iterator[Batch]:
    """All images once, in order, for the algorithm to pass through its network; shared out among processes.

    Then a batch has the labels of all its images, and of the images those of this process; while it is looked at,
    the backbone is divided.
    """
    if processes.size == 1:
        yield from images.batches()
        return
    size = processes.size * images.store.batch_size
    for rows, labels in zip(images.rows.split(size), images.labels.split(size), strict=True):
        division = processes.division(len(rows))
        assert division is not None
        pixels = images.store.gather(division.own(rows, dim=0))
        with divided(algorithm.backbone, division):
            yield Batch(images.preprocessing(pixels), labels)


@torch.no_grad()
def embed(algorithm: Algorithm, batches: Iterable[Batch]) -> Embedded:
    """Pass the images through the network once."""
    features, labels = zip(*((algorithm.embed(batch.images), batch.labels) for batch in batches), strict=True)
    return Embedded(torch.cat(features), torch.cat(labels))


@torch.no_grad()
def predict(
    algorithm: Algorithm, embedded: Embedded, seed: int, repeat: int
) -> Float[Tensor, "count classes"]:
    """Class probabilities from one set of draws: the same classifiers for all images, each its own codes."""
    return torch.cat(list(_chunks(algorithm, embedded, seed, repeat)))


def chunk_of(algorithm: Algorithm) -> int:
    """How many images are predicted at a time: fewer where there are thousands of classes."""
    draws = math.prod(shape[0] for shape in algorithm.prediction_noise_shapes(1).values())
    return max(1, min(CHUNK, MOST_VALUES // (draws * algorithm.classes)))


def _chunks(
    algorithm: Algorithm, embedded: Embedded, seed: int, repeat: int
) -> Iterator[Float[Tensor, "some classes"]]:
    for chunk, features in enumerate(embedded.features.split(chunk_of(algorithm))):
        noise = prediction_noise(algorithm, seed, repeat, chunk, features)
        yield algorithm.predictive(features, noise).probabilities()


@torch.no_grad()
def _scores(algorithm: Algorithm, embedded: Embedded, seed: int, repeat: int) -> Scores:
    """One repeat, scored block by block: probabilities of all images for all classes may not fit."""
    block = max(1, MOST_VALUES // algorithm.classes)  # images
    parts, waiting, start = [], [], 0
    for probabilities in _chunks(algorithm, embedded, seed, repeat):
        waiting.append(probabilities)
        count = sum(len(some) for some in waiting)
        if count >= block or start + count == len(embedded.labels):
            whole = torch.cat(waiting)
            if not whole.isfinite().all():
                raise AstrayError(
                    "the model's probabilities are not finite: its training went astray. "
                    "Train again with a lower learning_rate or clip_norm=1."
                )
            parts.append(scored(whole, embedded.labels[start : start + count]))
            waiting, start = [], start + count
    return Scores.of_all(parts)


def prediction_noise(algorithm: Algorithm, seed: int, repeat: int, chunk: int, features: Tensor) -> Noise:
    """The draws of one repeat for one chunk of images."""
    noise = {}
    for purpose, shape in algorithm.prediction_noise_shapes(len(features)).items():
        key = fold(key_of(seed, "evaluation", purpose), repeat)
        if purpose != "classifier":
            key = fold(key, chunk)
        noise[purpose] = normal(key.to(features.device), shape)
    return noise


def shared_noise(algorithm: Algorithm, seed: int, device: torch.device) -> Noise | None:
    """Draws that every image sees alike, as a predictor has them; None for a method without draws."""
    noise = {
        purpose: normal(key_of(seed, "prediction", purpose), shape, device)
        for purpose, shape in algorithm.prediction_noise_shapes(1).items()
    }
    return noise or None


@dataclass(frozen=True)
class AtMean:
    """Accuracy and loss with every distribution at its mean: quick, and free of sampling noise."""

    accuracy: float
    loss: float  # the mean negative log likelihood of the labels


@torch.no_grad()
def measure_at_mean(algorithm: Algorithm, embedded: Embedded) -> AtMean:
    """Plain accuracy and loss at the mean. This waits for the device once."""
    device = embedded.labels.device
    totals = torch.zeros(2, dtype=widest_float(device), device=device)
    for features, labels in zip(embedded.features.split(CHUNK), embedded.labels.split(CHUNK), strict=True):
        log_probabilities = algorithm.predictive(features, None).log_probabilities[0, 0]
        hits = (log_probabilities.argmax(dim=-1) == labels).sum()
        loss = -log_probabilities.gather(-1, labels.unsqueeze(-1)).sum()
        totals += torch.stack([hits.to(totals.dtype), loss.to(totals.dtype)])
    accuracy, loss = (totals / len(embedded.labels)).tolist()
    return AtMean(accuracy, loss if math.isfinite(loss) else LARGEST_LOSS)


def measure(
    algorithm: Algorithm,
    embedded: Embedded,
    seed: int,
    settings: Evaluation,
    domains: Mapping[str, int] | None = None,
) -> Measurement:
    """Each measure as mean and deviation over the repeats, and how they were made.

    `domains` says how many of the images are of each domain, one domain after the other: then the accuracy of each
    class is also told domain by domain.
    """
    draws = algorithm.prediction_noise_shapes(1)
    repeats = settings.repeats if draws else 1  # a method without draws gives the same answer every time
    found: dict[str, list[Tensor]] = {name: [] for name in MEASURES}
    by_class: list[Tensor] = []
    by_domain: dict[str, list[Tensor]] = {domain: [] for domain in domains or ()}
    for repeat in range(repeats):  # one after the other: the probabilities of all would take memory
        scores = _scores(algorithm, embedded, seed, repeat)
        for name in MEASURES:
            found[name].append(MEASURES[name].compute(scores))
        by_class.append(per_class_accuracy(scores))
        start = 0
        for domain, count in (domains or {}).items():
            by_domain[domain].append(per_class_accuracy(scores.part(start, count)))
            start += count
    measures = {}
    for name, measured in found.items():
        values = torch.stack(measured).cpu().double()
        deviation = values.std(correction=1) if repeats > 1 else torch.zeros(())
        measures[name] = Spread(values.mean().item(), deviation.item())
    of_domains = None
    if domains is not None:
        labels = embedded.labels.split(list(domains.values()))
        of_domains = {
            domain: replace(_by_class(by_domain[domain], own), images=len(own))
            for domain, own in zip(domains, labels, strict=True)
        }
    return Measurement(
        len(embedded.labels),
        _in_words(repeats, draws),
        measures,
        _by_class(by_class, embedded.labels),
        of_domains,
    )


def _by_class(accuracies: Sequence[Tensor], labels: Int[Tensor, "images"]) -> ClassAccuracies:
    """The mean accuracy of each class over the repeats, None where it has no image; and how many it has."""
    means = torch.stack(list(accuracies)).cpu().double().mean(dim=0).tolist()
    return ClassAccuracies(
        tuple(None if math.isnan(value) else value for value in means),
        tuple(torch.bincount(labels, minlength=len(means)).tolist()),
    )


def _in_words(repeats: int, draws: dict[str, tuple[int, ...]]) -> str:
    if not draws:
        return "one deterministic prediction"
    return f"{repeats} repeats of " + " x ".join(
        f"{shape[0]} {purpose} draws" for purpose, shape in draws.items()
    )
