"""Predictive distributions over classes, and the pooling of samples that MetaVIB's classifiers come from."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from metavib.shapes import Bool, Float, Int


class Predictive(NamedTuple):
    """Class log-probabilities under every drawn classifier psi and latent code z.

    A method without draws has one of each.
    """

    log_probabilities: Float[Tensor, "classifier_draws latent_draws batch classes"]

    def probabilities(self) -> Float[Tensor, "batch classes"]:
        """The prediction: the mean of the draws' probabilities."""
        return self.log_probabilities.exp().mean(dim=(0, 1))  # at most 1 each: no logsumexp needed

    def by_classifier(self) -> Float[Tensor, "classifier_draws batch classes"]:
        """The prediction of each drawn classifier, with the latent codes averaged out."""
        return self.log_probabilities.exp().mean(dim=1)

    def entropy(self) -> Float[Tensor, "batch"]:
        """Uncertainty in total: the entropy of the prediction, in nats."""
        return entropy(self.probabilities())

    def model_entropy(self) -> Float[Tensor, "batch"]:
        """The model's part: the mutual information I(y; psi), zero where all drawn classifiers agree."""
        return (self.entropy() - entropy(self.by_classifier()).mean(dim=0)).clamp_min(0.0)


def entropy(probabilities: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch"]:
    """H(p) = - sum_c p_c log p_c, with 0 log 0 = 0."""
    return -torch.special.xlogy(probabilities, probabilities).sum(dim=-1)


class ClassMeans(NamedTuple):
    """The mean feature of each class, and which classes had a sample at all (the others' means are zero)."""

    features: Float[Tensor, "classes dim"]
    present: Bool[Tensor, "classes"]


def class_means(
    features: Float[Tensor, "samples dim"], labels: Int[Tensor, "samples"], classes: int
) -> ClassMeans:
    """h_c = 1/M_c sum_m h(x_m) over the samples of class c: the paper's instance pooling."""
    membership = labels.unsqueeze(-1) == torch.arange(
        classes, device=labels.device
    )  # one_hot fails under vmap
    counts = membership.sum(dim=0)
    sums = membership.to(features.dtype).mT @ features
    return ClassMeans(sums / counts.clamp_min(1).unsqueeze(-1), counts > 0)


def class_logits(
    classifiers: Float[Tensor, "classifier_draws classes dim"],
    latents: Float[Tensor, "latent_draws batch dim"],
    present: Bool[Tensor, "classes"] | None = None,
) -> Float[Tensor, "classifier_draws latent_draws batch classes"]:
    """psi_c . z for every pair of draws. A class that is not present can not be answered: minus infinity."""
    (draws, classes, _), (latent_draws, batch, _) = classifiers.shape, latents.shape
    # One matrix product. Its result has the classes second in memory, which `log_softmax_of_classes` makes use of.
    logits = classifiers.flatten(0, 1) @ latents.flatten(0, 1).mT
    logits = logits.view(draws, classes, latent_draws, batch)
    if present is not None:
        logits = logits.masked_fill(~present.view(-1, 1, 1), -math.inf)
    return logits.permute(0, 2, 3, 1)


def log_softmax_of_classes(
    logits: Float[Tensor, "classifier_draws latent_draws batch classes"],
) -> Float[Tensor, "classifier_draws latent_draws batch classes"]:
    """log softmax over the classes, without a copy of what `class_logits` gave."""
    return torch.log_softmax(logits.movedim(-1, 1), dim=1).movedim(1, -1)


def masked_mean(values: Float[Tensor, "samples"], counted: Bool[Tensor, "samples"]) -> Float[Tensor, ""]:
    """The mean of the counted values; zero where none is counted. An infinite value left out stays out."""
    return values.masked_fill(~counted, 0.0).sum() / counted.sum().clamp_min(1)
