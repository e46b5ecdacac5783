"""Diagonal Gaussians as values."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from metavib.core.shapes import Float, Int


class Gaussian(NamedTuple):
    """N(mean, diag exp(log_variance)), over the last dimension; any leading ones are a batch."""

    mean: Float[Tensor, "*batch dim"]
    log_variance: Float[Tensor, "*batch dim"]

    def sample(self, noise: Float[Tensor, ...]) -> Float[Tensor, ...]:
        """mean + sigma * noise: a draw where the noise is standard normal (Kingma and Welling 2014)."""
        return torch.addcmul(self.mean, torch.exp(0.5 * self.log_variance), noise)

    def draws(self, noise: Float[Tensor, "*roles draws rows dim"]) -> Float[Tensor, "*roles draws rows dim"]:
        """Several draws of each, of a batch `[*roles, rows]`."""
        return Gaussian(self.mean.unsqueeze(-3), self.log_variance.unsqueeze(-3)).sample(noise)

    def split(self, count: int) -> tuple[Gaussian, Gaussian]:
        """The first so many of a batch (of its last dimension), and the rest."""
        return (
            Gaussian(self.mean[..., :count, :], self.log_variance[..., :count, :]),
            Gaussian(self.mean[..., count:, :], self.log_variance[..., count:, :]),
        )

    def select(self, index: Int[Tensor, "*roles picked"]) -> Gaussian:
        """The Gaussians at these positions of the last batch dimension.

        By a matrix product: the gradient of indexing is added up in whatever order threads come, and a run would
        not be the same twice.
        """
        chosen = (index.unsqueeze(-1) == torch.arange(self.mean.shape[-2], device=index.device)).to(
            self.mean.dtype
        )
        return Gaussian(chosen @ self.mean, chosen @ self.log_variance)


def standard_normal_like(other: Gaussian) -> Gaussian:
    """N(0, I) of the same shape."""
    return Gaussian(torch.zeros_like(other.mean), torch.zeros_like(other.log_variance))


def kl_divergence(p: Gaussian, q: Gaussian) -> Float[Tensor, "*batch"]:
    """KL[p || q] in closed form, summed over the dimensions.

    1/2 sum_d [ log sigma_q^2 - log sigma_p^2 + (sigma_p^2 + (mu_p - mu_q)^2) / sigma_q^2 - 1 ]
    """
    log_ratio = p.log_variance - q.log_variance
    shift = (p.mean - q.mean).square() * torch.exp(-q.log_variance)
    return 0.5 * (torch.exp(log_ratio) - log_ratio + shift - 1.0).sum(dim=-1)
