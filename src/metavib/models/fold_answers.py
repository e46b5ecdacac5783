"""How a model would answer if a source domain had been missing: its head is made again from the other domains.

The features stay those of the final network, which has seen the domain: this costs seconds where training again
costs a run. What it leaves out, that features of a domain nobody has seen are worse, `drifts` stand for.

A method that infers its classifier (MetaVIB, VIB, Baseline) infers it from the class means of the other domains.
For all others a linear classifier is fitted to the other domains' features, and scaled so that it is as sure of
source validation images as the model's own head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from metavib.algorithms.base import Algorithm
from metavib.algorithms.inferred import ProbabilisticClassifier
from metavib.core.shapes import Bool, Float, Int
from metavib.models.measuring import chunk_of
from metavib.nn.functional.predictive import class_means, entropy

DECAY = 1e-3  # of the linear head, on features of size one
ITERATIONS = 60  # of its optimizer

Head = Callable[[Tensor], Tensor]  # from features [images, features] to logits [images, classes]


@torch.no_grad()
def own_answers(
    algorithm: Algorithm, features: Float[Tensor, "images features"]
) -> Float[Tensor, "images classes"]:
    """The log-probabilities of the model itself, with every distribution at its mean."""
    parts = features.split(chunk_of(algorithm))
    return torch.cat([algorithm.predictive(part, None).log_probabilities[0, 0] for part in parts])


@contextmanager
def fold_head(
    algorithm: Algorithm,
    features: Float[Tensor, "images features"],
    labels: Int[Tensor, "images"],
    checked: Float[Tensor, "others features"],
) -> Iterator[Head]:
    """A head from these training features, which gives log-probabilities; minus infinity for a class they lack.

    `checked` are features on which it is to be as sure as the model itself.
    """
    present = torch.bincount(labels, minlength=algorithm.classes) > 0
    if isinstance(algorithm, ProbabilisticClassifier):
        with _inferred(algorithm, class_means(features, labels, algorithm.classes).features):
            yield lambda given: _among(own_answers(algorithm, given), present)
        return
    linear = _linear(features, labels, algorithm.classes)
    scale = _matched(linear(checked), own_answers(algorithm, checked), present)
    yield lambda given: _among(scale * linear(given), present)


@contextmanager
def _inferred(algorithm: ProbabilisticClassifier, means: Tensor) -> Iterator[None]:
    """The method as if it had absorbed these class means; as it was in the end."""
    kept = [algorithm.class_features, algorithm.classifier_mean, algorithm.classifier_log_variance]
    before = [values.clone() for values in kept]
    try:
        algorithm.keep(means)
        yield
    finally:
        for values, old in zip(kept, before, strict=True):
            values.copy_(old)


def _linear(features: Tensor, labels: Tensor, classes: int) -> Head:
    """Multinomial logistic regression, which has one optimum: L-BFGS finds it whatever it begins with."""
    mean, size = features.mean(dim=0), features.std(dim=0).mean().clamp_min(1e-6)
    inputs = ((features - mean) / size).detach()
    weight = torch.zeros(classes, features.shape[1], dtype=features.dtype, device=features.device)
    bias = torch.zeros(classes, dtype=features.dtype, device=features.device)
    weight.requires_grad_(), bias.requires_grad_()
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = nn.functional.cross_entropy(inputs @ weight.mT + bias, labels)
        value = value + 0.5 * DECAY * weight.square().sum()
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
    fitted, offset = weight.detach(), bias.detach()
    return lambda given: ((given - mean) / size) @ fitted.mT + offset


def _matched(logits: Tensor, own: Tensor, present: Bool[Tensor, "classes"]) -> float:
    """The factor at which the mean entropy of these logits is that of the model's own answers."""
    if len(logits) == 0:
        return 1.0
    wanted = entropy(own.exp()).mean().item()
    low, high = 1e-2, 1e2
    for _ in range(40):
        middle = (low * high) ** 0.5
        if entropy(_among(middle * logits, present).exp()).mean().item() > wanted:
            low = middle
        else:
            high = middle
    return (low * high) ** 0.5


def _among(logits: Tensor, present: Bool[Tensor, "classes"]) -> Tensor:
    """log softmax over the classes that are present."""
    return torch.log_softmax(logits.masked_fill(~present, -torch.inf), dim=1)
