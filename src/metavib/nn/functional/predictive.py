"""Predictive distributions over classes, and the pooling of samples that MetaVIB's classifiers come from."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from metavib.core.shapes import Bool, Float, Int


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
    return 0.0 - torch.special.xlogy(probabilities, probabilities).sum(dim=-1)  # of a sure answer 0, not -0


class ClassMeans(NamedTuple):
    """The mean feature of each class, and which classes had a sample at all (the others' means are zero)."""

    features: Float[Tensor, "*batch classes dim"]
    present: Bool[Tensor, "*batch classes"]


def class_means(
    features: Float[Tensor, "samples dim"], labels: Int[Tensor, "samples"], classes: int
) -> ClassMeans:
    """h_c = 1/M_c sum_m h(x_m) over the samples of class c: the paper's instance pooling."""
    return _means(*class_sums(features, labels, torch.arange(classes, device=labels.device)))


def class_sums(
    features: Float[Tensor, "*domains samples dim"],
    labels: Int[Tensor, "*domains samples"],
    names: Int[Tensor, "classes"],
) -> tuple[Float[Tensor, "*domains classes dim"], Int[Tensor, "*domains classes"]]:
    """The summed features of the samples of each of these classes, and how many there are."""
    membership = labels.unsqueeze(-1) == names  # one_hot fails under vmap
    return membership.to(features.dtype).mT @ features, membership.sum(dim=-2)


def means_without_each(
    features: Float[Tensor, "domains samples dim"], labels: Int[Tensor, "domains samples"], classes: int
) -> ClassMeans:
    """For each domain the class means over all other domains: [domains, classes, ...].

    The sums of a domain are made once. A matrix product adds up those of all others, without a difference, which
    would lose digits.
    """
    sums, counts = class_sums(features, labels, torch.arange(classes, device=labels.device))
    others = 1.0 - torch.eye(len(features), dtype=sums.dtype, device=sums.device)
    return _means((others @ sums.flatten(1)).view_as(sums), counts.sum(dim=0) - counts)


def renumbered(labels: Int[Tensor, "samples"]) -> Int[Tensor, "samples"]:
    """Other numbers for the classes of these samples, all below the number of samples: equal where they were.

    Where there are more classes than samples, nothing need be computed for those that no sample has.
    """
    return torch.searchsorted(labels.sort().values, labels)


def _means(sums: Float[Tensor, "*batch classes dim"], counts: Int[Tensor, "*batch classes"]) -> ClassMeans:
    return ClassMeans(sums / counts.clamp_min(1).unsqueeze(-1), counts > 0)


def class_logits(
    classifiers: Float[Tensor, "*roles classifier_draws classes dim"],
    latents: Float[Tensor, "*roles latent_draws batch dim"],
    present: Bool[Tensor, "*roles classes"] | None = None,
) -> Float[Tensor, "*roles classifier_draws latent_draws batch classes"]:
    """psi_c . z for every pair of draws. A class that is not present can not be answered: minus infinity."""
    draws, latent_draws = classifiers.shape[-3:-1], latents.shape[-3:-1]
    # One matrix product. Its result has the classes second in memory, which `log_softmax_of_classes` makes use of.
    logits = classifiers.flatten(-3, -2) @ latents.flatten(-3, -2).mT
    logits = logits.unflatten(-1, latent_draws).unflatten(-3, draws)
    if present is not None:
        logits = logits.masked_fill(~present.unflatten(-1, (1, -1, 1, 1)), -math.inf)
    return logits.movedim(-3, -1)


def log_softmax_of_classes(
    logits: Float[Tensor, "*roles classifier_draws latent_draws batch classes"],
) -> Float[Tensor, "*roles classifier_draws latent_draws batch classes"]:
    """log softmax over the classes, without a copy of what `class_logits` gave."""
    return torch.log_softmax(logits.movedim(-1, -3), dim=-3).movedim(-3, -1)


def softmax_of_classes(
    logits: Float[Tensor, "*roles classifier_draws latent_draws batch classes"],
) -> Float[Tensor, "*roles classifier_draws latent_draws batch classes"]:
    """softmax over the classes, likewise."""
    return torch.softmax(logits.movedim(-1, -3), dim=-3).movedim(-3, -1)


def masked_mean(
    values: Float[Tensor, "*roles samples"], counted: Bool[Tensor, "*roles samples"]
) -> Float[Tensor, "*roles"]:
    """The mean of the counted values; zero where none is counted. An infinite value left out stays out."""
    return values.masked_fill(~counted, 0.0).sum(dim=-1) / counted.sum(dim=-1).clamp_min(1)
