"""How far the codes of several domains are apart: maximum mean discrepancy (Gretton et al., JMLR 2012)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from metavib.shapes import Float


def squared_distances(
    first: Float[Tensor, "n dims"], second: Float[Tensor, "m dims"]
) -> Float[Tensor, "n m"]:
    """|| x_i - y_j ||^2, never negative."""
    sizes = first.square().sum(dim=-1).unsqueeze(-1) + second.square().sum(dim=-1)
    return (sizes - 2.0 * first @ second.mT).clamp_min(0.0)


def rbf_mixture(
    distances: Float[Tensor, "n m"], squared_widths: Sequence[float], unit: float | Float[Tensor, ""] = 1.0
) -> Float[Tensor, "n m"]:
    """Mean over sigma^2 of exp( - || x - y ||^2 / (2 sigma^2 unit) ): a mixture of RBF kernels."""
    scaled = -0.5 * distances / unit
    return torch.stack([torch.exp(scaled / width) for width in squared_widths]).mean(dim=0)


def pairwise_mmd(
    codes: Float[Tensor, "domains samples dims"],
    squared_widths: Sequence[float],
    unit: float | Float[Tensor, ""] | None = None,
) -> Float[Tensor, "domains domains"]:
    """MMD^2 of every pair of domains: mean k(x, x') + mean k(y, y') - 2 mean k(x, y), all pairs counted.

    It is the squared distance of the domains' means in the kernel's space, so zero where two domains have the
    same samples and never below. The widths are in units of the mean squared distance between any two of the
    codes, which counts as a constant, or of what is given as the unit.
    """
    domains, samples, _ = codes.shape
    flat = codes.flatten(0, 1)
    distances = squared_distances(flat, flat)
    if unit is None:
        # Codes that are all the same have no distance to divide by.
        unit = distances.detach().mean().clamp_min(torch.finfo(codes.dtype).tiny)
    kernel = rbf_mixture(distances, squared_widths, unit)
    means = kernel.view(domains, samples, domains, samples).mean(dim=(1, 3))
    within = means.diagonal()
    return within.unsqueeze(-1) + within - 2.0 * means
