"""Measures of predicted probabilities against labels; `measures` names them.

A measure follows from a few numbers a sample (`Scores`), so that predictions for many classes are scored in
blocks, and their probabilities need not be in memory together. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from metavib.core.shapes import Float, Int


class Scores(NamedTuple):
    """Inputs of the measures for each sample, of a size that does not grow with the classes."""

    labels: Int[Tensor, "samples"]
    predicted: Int[Tensor, "samples"]  # the most probable class
    confidence: Float[Tensor, "samples"]  # its probability
    of_label: Float[Tensor, "samples"]  # the probability of the label
    squared_error: Float[Tensor, "samples"]  # sum_c (p_c - [y = c])^2
    classes: int

    def part(self, start: int, count: int) -> Scores:
        """So many samples from this one on."""
        *columns, classes = self
        return Scores._make([*(values[start : start + count] for values in columns), classes])

    @staticmethod
    def of_all(parts: Sequence[Scores]) -> Scores:
        """The samples of all parts, one part after another."""
        assert len({part.classes for part in parts}) == 1
        columns = zip(*(part[:-1] for part in parts), strict=True)
        return Scores._make([*map(torch.cat, columns), parts[0].classes])


@dataclass(frozen=True)
class Measure:
    """One number that a trained model is judged by."""

    compute: Callable[[Scores], Float[Tensor, ""]]
    title: str
    meaning: str
    higher_is_better: bool
    unit: str = "%"  # of a share, from 0 to 1 in records; "" for any other number

    @property
    def scale(self) -> int:
        """The factor from the number of a record to the unit in which it is shown."""
        return 100 if self.unit == "%" else 1

    def allows(self, value: float) -> bool:
        """Whether it can have this value: a share lies between 0 and 1."""
        return self.unit != "%" or 0 <= value <= 1

    @property
    def caption(self) -> str:
        """The meaning, and which way is better."""
        text = f"{self.meaning}; {'higher' if self.higher_is_better else 'lower'} is better"
        return text[0].upper() + text[1:]


def scored(probabilities: Float[Tensor, "samples classes"], labels: Int[Tensor, "samples"]) -> Scores:
    """The scores of these predictions; refused where they or the labels make no sense."""
    probabilities = _checked(probabilities, labels)
    confidence, predicted = probabilities.max(1)
    truth = labels[:, None] == torch.arange(probabilities.shape[1], device=labels.device)
    return Scores(
        labels,
        predicted,
        confidence,
        probabilities.gather(1, labels[:, None].long())[:, 0],
        (probabilities - truth.to(probabilities.dtype)).square().sum(1),
        probabilities.shape[1],
    )


def accuracy(scores: Scores) -> Float[Tensor, ""]:
    """The share of samples whose most probable class is their label: 1/N sum_n [argmax_c p_nc = y_n]."""
    return (scores.predicted == scores.labels).to(scores.confidence.dtype).mean()


def per_class_accuracy(scores: Scores) -> Float[Tensor, "classes"]:
    """The accuracy on the samples of each class, the diagonal of the row-normalised confusion matrix.

    NaN for a class without samples.
    """
    hits = torch.bincount(scores.labels[scores.predicted == scores.labels], minlength=scores.classes)
    return hits.to(scores.confidence.dtype) / torch.bincount(scores.labels, minlength=scores.classes)


def class_averaged_accuracy(scores: Scores) -> Float[Tensor, ""]:
    """The mean of the per-class accuracies over the classes present: MetaVIB's metric (Du et al. 2020).

    Also called balanced accuracy (Brodersen et al., ICPR 2010).
    """
    return per_class_accuracy(scores).nanmean()


def negative_log_likelihood(scores: Scores) -> Float[Tensor, ""]:
    """The logarithmic score (Good 1952): - 1/N sum_n log p_n[y_n].

    Probabilities are floored at the smallest normal float, so that a zero costs much, but not infinity.
    """
    return -scores.of_label.clamp_min(torch.finfo(scores.of_label.dtype).tiny).log().mean()


def expected_calibration_error(scores: Scores, bins: int = 15) -> Float[Tensor, ""]:
    """sum_b |B_b|/N |accuracy(B_b) - confidence(B_b)| (Naeini et al., AAAI 2015; Guo et al., ICML 2017).

    Confidence is the top probability; bin b holds the samples with (b-1)/bins < confidence <= b/bins.
    """
    if bins < 1:
        raise ValueError(f"bins must be at least 1, not {bins}")
    confidence = scores.confidence
    surplus = confidence - (scores.predicted == scores.labels).to(confidence.dtype)
    inner_edges = torch.linspace(0, 1, bins + 1, dtype=confidence.dtype, device=confidence.device)[1:-1]
    # |B|/N |accuracy - confidence| is |the bin's summed surplus| / N, for empty bins too. A product with the
    # membership, not a scatter: its order of summation is the same in every run on a GPU.
    numbers = torch.arange(bins, device=confidence.device)
    in_bin = torch.bucketize(confidence, inner_edges)[:, None] == numbers
    return (surplus[:, None] * in_bin).sum(0).abs().sum() / len(scores.labels)


def brier_score(scores: Scores) -> Float[Tensor, ""]:
    """1/N sum_n sum_c (p_nc - [y_n = c])^2, from 0 to 2 (Brier 1950)."""
    return scores.squared_error.mean()


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
