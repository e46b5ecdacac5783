"""Measures of predicted probabilities against labels. All are pure and give 0-dimensional tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from metavib.shapes import Float, Int


def accuracy(
    probabilities: Float[Tensor, "samples classes"], labels: Int[Tensor, "samples"]
) -> Float[Tensor, ""]:
    """The share of samples whose most probable class is their label: 1/N sum_n [argmax_c p_nc = y_n]."""
    probabilities = _checked(probabilities, labels)
    return (probabilities.argmax(1) == labels).to(probabilities.dtype).mean()


def per_class_accuracy(
    probabilities: Float[Tensor, "samples classes"], labels: Int[Tensor, "samples"]
) -> Float[Tensor, "classes"]:
    """The accuracy on the samples of each class, the diagonal of the row-normalised confusion matrix.

    NaN for a class without samples.
    """
    probabilities = _checked(probabilities, labels)
    classes = probabilities.shape[1]
    hits = torch.bincount(labels[probabilities.argmax(1) == labels], minlength=classes)
    return hits.to(probabilities.dtype) / torch.bincount(labels, minlength=classes)


def class_averaged_accuracy(
    probabilities: Float[Tensor, "samples classes"], labels: Int[Tensor, "samples"]
) -> Float[Tensor, ""]:
    """The mean of the per-class accuracies over the classes present: MetaVIB's metric (Du et al. 2020).

    Also called balanced accuracy (Brodersen et al., ICPR 2010).
    """
    return per_class_accuracy(probabilities, labels).nanmean()


def negative_log_likelihood(
    probabilities: Float[Tensor, "samples classes"], labels: Int[Tensor, "samples"]
) -> Float[Tensor, ""]:
    """The logarithmic score (Good 1952): - 1/N sum_n log p_n[y_n].

    Probabilities are floored at the smallest normal float, so that a zero costs much, but not infinity.
    """
    of_label = _checked(probabilities, labels).gather(1, labels[:, None].long())
    return -of_label.clamp_min(torch.finfo(of_label.dtype).tiny).log().mean()


def expected_calibration_error(
    probabilities: Float[Tensor, "samples classes"], labels: Int[Tensor, "samples"], bins: int = 15
) -> Float[Tensor, ""]:
    """sum_b |B_b|/N |accuracy(B_b) - confidence(B_b)| (Naeini et al., AAAI 2015; Guo et al., ICML 2017).

    Confidence is the top probability; bin b holds the samples with (b-1)/bins < confidence <= b/bins.
    """
    if bins < 1:
        raise ValueError(f"bins must be at least 1, not {bins}")
    probabilities = _checked(probabilities, labels)
    confidence, predicted = probabilities.max(1)
    surplus = confidence - (predicted == labels).to(confidence.dtype)
    inner_edges = torch.linspace(0, 1, bins + 1, dtype=confidence.dtype, device=confidence.device)[1:-1]
    # |B|/N |accuracy - confidence| is |the bin's summed surplus| / N, for empty bins too. A product with the
    # membership, not a scatter: its order of summation is the same in every run on a GPU.
    in_bin = torch.bucketize(confidence, inner_edges)[:, None] == torch.arange(bins, device=confidence.device)
    return (surplus[:, None] * in_bin).sum(0).abs().sum() / len(labels)


def brier_score(
    probabilities: Float[Tensor, "samples classes"], labels: Int[Tensor, "samples"]
) -> Float[Tensor, ""]:
    """1/N sum_n sum_c (p_nc - [y_n = c])^2, from 0 to 2 (Brier 1950)."""
    probabilities = _checked(probabilities, labels)
    truth = labels[:, None] == torch.arange(probabilities.shape[1], device=labels.device)
    return (probabilities - truth.to(probabilities.dtype)).square().sum(1).mean()


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
