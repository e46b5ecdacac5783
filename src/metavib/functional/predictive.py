"""Predictive distributions over classes, and the pooling of samples that MetaVIB's classifiers come from."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from metavib.shapes import Bool, Float, Int, Num

POOLED_AGAIN = 8  # domains, at most


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
    features: Float[Tensor, "samples dim"], labels: Int[Tensor, "samples"], names: Int[Tensor, "classes"]
) -> tuple[Float[Tensor, "classes dim"], Int[Tensor, "classes"]]:
    """The summed features of the samples of each of these classes, and how many there are."""
    membership = labels.unsqueeze(-1) == names  # one_hot fails under vmap
    return membership.to(features.dtype).mT @ features, membership.sum(dim=0)


def means_without_each(
    features: Float[Tensor, "domains samples dim"], labels: Int[Tensor, "domains samples"], classes: int
) -> ClassMeans:
    """For each domain the class means over all other domains: [domains, classes, ...].

    Few domains are pooled again for each of them. Of many, that would be the square of their number: there the
    sums of a domain are made once, and those before and those after each one are added.
    """
    names = torch.arange(classes, device=labels.device)
    if len(features) <= POOLED_AGAIN:
        sums, counts = torch.vmap(class_sums, in_dims=(0, 0, None))(
            _all_but_each(features).flatten(1, 2), _all_but_each(labels).flatten(1, 2), names
        )
    else:
        of_each = torch.vmap(class_sums, in_dims=(0, 0, None))(features, labels, names)
        sums, counts = (_sums_without_each(values) for values in of_each)
    return _means(sums, counts)


def renumbered(labels: Int[Tensor, "samples"]) -> Int[Tensor, "samples"]:
    """Other numbers for the classes of these samples, all below the number of samples: equal where they were.

    Where there are more classes than samples, nothing need be computed for those that no sample has.
    """
    return torch.searchsorted(labels.sort().values, labels)


def _means(sums: Float[Tensor, "*batch classes dim"], counts: Int[Tensor, "*batch classes"]) -> ClassMeans:
    return ClassMeans(sums / counts.clamp_min(1).unsqueeze(-1), counts > 0)


def _all_but_each(values: Num[Tensor, "domains ..."]) -> Num[Tensor, "domains others ..."]:
    """For each domain the values of all others."""
    return torch.stack([torch.cat([values[:own], values[own + 1 :]]) for own in range(len(values))])


def _sums_without_each(values: Num[Tensor, "domains ..."]) -> Num[Tensor, "domains ..."]:
    """For each domain the sum over all others, without a difference, which would lose digits."""
    none = torch.zeros_like(values[0])
    before = list(itertools.accumulate(values[:-1].unbind(), initial=none))
    after = list(itertools.accumulate(values[1:].flip(0).unbind(), initial=none))[::-1]
    return torch.stack(before) + torch.stack(after)


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
