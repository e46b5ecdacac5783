"""Measures of predicted probabilities against labels. All are pure and give 0-dimensional tensors.

All of them follow from a few numbers a sample (`Judged`), so that predictions for many classes can be judged in
blocks, and their probabilities need not be in memory together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from metavib.shapes import Float, Int


class Judged(NamedTuple):
    """What the measures need to know of each sample, however many classes there are."""

    labels: Int[Tensor, "samples"]
    predicted: Int[Tensor, "samples"]  # the most probable class
    confidence: Float[Tensor, "samples"]  # its probability
    of_label: Float[Tensor, "samples"]  # the probability of the label
    squared_error: Float[Tensor, "samples"]  # sum_c (p_c - [y = c])^2
    classes: int

    def accuracy(self) -> Float[Tensor, ""]:
        """As the function of this name."""
        return (self.predicted == self.labels).to(self.confidence.dtype).mean()

    def per_class_accuracy(self) -> Float[Tensor, "classes"]:
        """As the function of this name."""
        hits = torch.bincount(self.labels[self.predicted == self.labels], minlength=self.classes)
        return hits.to(self.confidence.dtype) / torch.bincount(self.labels, minlength=self.classes)

    def part(self, start: int, count: int) -> Judged:
        """So many samples from this one on."""
        own = slice(start, start + count)
        return Judged(
            self.labels[own],
            self.predicted[own],
            self.confidence[own],
            self.of_label[own],
            self.squared_error[own],
            self.classes,
        )

    def class_averaged_accuracy(self) -> Float[Tensor, ""]:
        """As the function of this name."""
        return self.per_class_accuracy().nanmean()

    def negative_log_likelihood(self) -> Float[Tensor, ""]:
        """As the function of this name."""
        return -self.of_label.clamp_min(torch.finfo(self.of_label.dtype).tiny).log().mean()

    def expected_calibration_error(self, bins: int = 15) -> Float[Tensor, ""]:
        """As the function of this name."""
        if bins < 1:
            raise ValueError(f"bins must be at least 1, not {bins}")
        confidence = self.confidence
        surplus = confidence - (self.predicted == self.labels).to(confidence.dtype)
        inner_edges = torch.linspace(0, 1, bins + 1, dtype=confidence.dtype, device=confidence.device)[1:-1]
        # |B|/N |accuracy - confidence| is |the bin's summed surplus| / N, for empty bins too. A product with the
        # membership, not a scatter: its order of summation is the same in every run on a GPU.
        numbers = torch.arange(bins, device=confidence.device)
        in_bin = torch.bucketize(confidence, inner_edges)[:, None] == numbers
        return (surplus[:, None] * in_bin).sum(0).abs().sum() / len(self.labels)

    def brier_score(self) -> Float[Tensor, ""]:
        """As the function of this name."""
        return self.squared_error.mean()


def judged(probabilities: Float[Tensor, "samples classes"], labels: Int[Tensor, "samples"]) -> Judged:
    """What the measures need of these predictions; refused where they or the labels make no sense."""
    probabilities = _checked(probabilities, labels)
    confidence, predicted = probabilities.max(1)
    truth = labels[:, None] == torch.arange(probabilities.shape[1], device=labels.device)
    return Judged(
        labels,
        predicted,
        confidence,
        probabilities.gather(1, labels[:, None].long())[:, 0],
        (probabilities - truth.to(probabilities.dtype)).square().sum(1),
        probabilities.shape[1],
    )


def joined(parts: Sequence[Judged]) -> Judged:
    """The samples of all parts."""
    assert len({part.classes for part in parts}) == 1
    return Judged(
        torch.cat([part.labels for part in parts]),
        torch.cat([part.predicted for part in parts]),
        torch.cat([part.confidence for part in parts]),
        torch.cat([part.of_label for part in parts]),
        torch.cat([part.squared_error for part in parts]),
        parts[0].classes,
    )


def accuracy(
    probabilities: Float[Tensor, "samples classes"], labels: Int[Tensor, "samples"]
) -> Float[Tensor, ""]:
    """The share of samples whose most probable class is their label: 1/N sum_n [argmax_c p_nc = y_n]."""
    return judged(probabilities, labels).accuracy()


def per_class_accuracy(
    probabilities: Float[Tensor, "samples classes"], labels: Int[Tensor, "samples"]
) -> Float[Tensor, "classes"]:
    """The accuracy on the samples of each class, the diagonal of the row-normalised confusion matrix.

    NaN for a class without samples.
    """
    return judged(probabilities, labels).per_class_accuracy()


def class_averaged_accuracy(
    probabilities: Float[Tensor, "samples classes"], labels: Int[Tensor, "samples"]
) -> Float[Tensor, ""]:
    """The mean of the per-class accuracies over the classes present: MetaVIB's metric (Du et al. 2020).

    Also called balanced accuracy (Brodersen et al., ICPR 2010).
    """
    return judged(probabilities, labels).class_averaged_accuracy()


def negative_log_likelihood(
    probabilities: Float[Tensor, "samples classes"], labels: Int[Tensor, "samples"]
) -> Float[Tensor, ""]:
    """The logarithmic score (Good 1952): - 1/N sum_n log p_n[y_n].

    Probabilities are floored at the smallest normal float, so that a zero costs much, but not infinity.
    """
    return judged(probabilities, labels).negative_log_likelihood()


def expected_calibration_error(
    probabilities: Float[Tensor, "samples classes"], labels: Int[Tensor, "samples"], bins: int = 15
) -> Float[Tensor, ""]:
    """sum_b |B_b|/N |accuracy(B_b) - confidence(B_b)| (Naeini et al., AAAI 2015; Guo et al., ICML 2017).

    Confidence is the top probability; bin b holds the samples with (b-1)/bins < confidence <= b/bins.
    """
    return judged(probabilities, labels).expected_calibration_error(bins)


def brier_score(
    probabilities: Float[Tensor, "samples classes"], labels: Int[Tensor, "samples"]
) -> Float[Tensor, ""]:
    """1/N sum_n sum_c (p_nc - [y_n = c])^2, from 0 to 2 (Brier 1950)."""
    return judged(probabilities, labels).brier_score()


def _checked(probabilities: Tensor, labels: Tensor) -> Tensor:
    """The probabilities in float32 or better, once they and the labels are known to make sense."""
    if probabilities.numel() == 0:
        raise ValueError("no samples: a measure of nothing is not defined")
    probabilities = probabilities.to(torch.promote_types(probabilities.dtype, torch.float32))
    if not (probabilities >= 0).all():  # NaN compares as false
        raise ValueError("probabilities must not be NaN or negative")
    if not ((probabilities.sum(1) - 1).abs() < 1e-2).all():  # as far as bfloat16 may be off
        raise ValueError("the probabilities of a sample must sum to one")
    if len(labels) != len(probabilities) or not ((labels >= 0) & (labels < probabilities.shape[1])).all():
        raise ValueError("labels must be one class index for each sample")
    return probabilities
