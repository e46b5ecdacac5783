"""Mutual information between an image X, what a layer says of it T, and its label Y, from samples; in bits.

X is one of the n given images, each as likely as the others, so that no estimate of I(X;T) exceeds log2 n and none
of I(T;Y) exceeds H(Y). Between real numbers and a layer that draws nothing, I(X;T) has no finite value at all
(Saxe et al., "On the information bottleneck theory of deep learning", ICLR 2018): an estimate says how well images
can be told apart at some resolution, that of the bins or of the noise, and means nothing without it.

`binned` cuts the values into bins (Shwartz-Ziv and Tishby, "Opening the black box of deep neural networks via
information", 2017). Where a layer is wide, no two images fall into the same bins: then it says log2 n and H(Y),
whatever the layer knows.

`from_distances` takes T as a mixture of n Gaussians, one for each image (Kolchinsky and Tracey, "Estimating
mixture entropy with pairwise distances", Entropy 2017). With D_ij = KL[p_i || p_j] of images i and j,

    I(X;T) ~ - mean_i log mean_j exp(-D_ij)
    I(T;Y) ~ mean_i log [ mean over j of the class of i of exp(-D_ij) / mean over all j of exp(-D_ij) ]

The first is an upper bound. The second, the entropy of T less that of T within classes, is the difference of two
such bounds: an estimate, and no bound. An image is at no distance from itself, so it is too high where the noise
is so small that few others are near, also for labels that have nothing to do with T.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from metavib.core.shapes import Float, Int
from metavib.nn.functional.gaussian import Gaussian

LARGEST_SAMPLE = 1_024  # memory grows with its square


class Information(NamedTuple):
    """The information in a layer, in bits."""

    with_input: Float[Tensor, ""]  # I(X;T)
    with_label: Float[Tensor, ""]  # I(T;Y)


def binned(
    values: Float[Tensor, "samples units"], labels: Int[Tensor, "samples"], bins: int = 30
) -> Information:
    """Of the values in bins of equal width from the smallest to the largest of the layer; T is all units together.

    Nothing is drawn, so I(X;T) = H(T); and I(T;Y) = H(T) + H(Y) - H(T, Y).
    """
    values = values.double()
    lowest, highest = values.aminmax()
    width = ((highest - lowest) / bins).clamp_min(torch.finfo(torch.float64).tiny)
    cells = ((values - lowest) / width).clamp(max=bins - 1).to(torch.int64)
    _, pattern = torch.unique(cells, dim=0, return_inverse=True)
    both = pattern * (labels.max() + 1) + labels
    with_input = symbol_entropy(pattern)
    return Information(with_input, with_input + symbol_entropy(labels) - symbol_entropy(both))


def distances_between(codes: Gaussian) -> Float[Tensor, "samples samples"]:
    """D_ij: the KL divergences of Gaussian codes, one for each sample."""
    assert len(codes.mean) <= LARGEST_SAMPLE
    # About their common mean, and in double precision: distances are differences of large numbers.
    mean = codes.mean.double()
    centred = Gaussian(mean - mean.mean(dim=0), codes.log_variance.double())
    return _divergences(centred).clamp_min(0.0).fill_diagonal_(0.0)


def from_distances(
    distances: Float[Tensor, "samples samples"], labels: Int[Tensor, "samples"]
) -> Information:
    """The two equations above."""
    same_class = labels.unsqueeze(0) == labels.unsqueeze(1)
    near = torch.logsumexp(-distances, dim=1) - math.log(len(labels))
    in_class = (-distances).masked_fill(~same_class, -math.inf)
    near_in_class = torch.logsumexp(in_class, dim=1) - same_class.sum(dim=1).double().log()
    return Information(-near.mean() / math.log(2), (near_in_class - near).mean() / math.log(2))


def symbol_entropy(symbols: Int[Tensor, "samples"]) -> Float[Tensor, ""]:
    """H in bits, with every symbol as likely as it is frequent: log2 n - 1/n sum count log2 count."""
    _, counts = torch.unique(symbols, return_counts=True)
    counts = counts.double()
    return (math.log(len(symbols)) - (counts * counts.log()).sum() / len(symbols)) / math.log(2)


def _divergences(codes: Gaussian) -> Float[Tensor, "samples samples"]:
    """KL[p_i || p_j] as in `gaussian.kl_divergence`, for all pairs by matrix products."""
    mean, variance, precision = codes.mean, codes.log_variance.exp(), (-codes.log_variance).exp()
    log_determinant = codes.log_variance.sum(dim=1)
    in_units_of_j = (variance + mean.square()) @ precision.mT - 2.0 * mean @ (mean * precision).mT
    in_units_of_j += (mean.square() * precision).sum(dim=1)
    return 0.5 * (in_units_of_j - mean.shape[1] + log_determinant - log_determinant.unsqueeze(1))
