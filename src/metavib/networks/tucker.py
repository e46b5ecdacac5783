"""A parameter for each source domain and one for no domain in particular, from one Tucker-factored tensor."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn

from metavib.shapes import Float

START = 0.01  # norm of what a domain has for itself before training; at zero the factors had no gradient


@final
class TuckerTensor(nn.Module):
    """W(z) = core x_0 (z D) x_1 O x_2 I: the weights of a layer that belong to a domain indicator z.

    The core has a mode for domains and those of the weights. D has a row for each entry of z, O for each output, I
    for each input of the layer. A mode of full rank has no factor, because the core can hold it; the height and
    width of a kernel, which are small, have none either.
    """

    of_domains: nn.Parameter | None  # D
    outputs: nn.Parameter | None  # O
    inputs: nn.Parameter | None  # I

    def __init__(self, first: Tensor, indicators: int, domain_rank: int, channel_rank: float) -> None:
        """The last entry of z, which stands for no domain, has the weights `first`, as near as the ranks allow.
        The others begin near zero and can grow in `domain_rank` - 1 directions.

        `channel_rank` is a share of the outputs, and of the inputs.
        """
        super().__init__()
        core = first.detach()
        self.outputs = self.inputs = None
        if first.ndim > 1:
            self.outputs = _leading_vectors(first, 0, channel_rank)
            self.inputs = _leading_vectors(first, 1, channel_rank)
            if self.outputs is not None:
                core = torch.einsum("or,o...->r...", self.outputs.detach(), core)
            if self.inputs is not None:
                core = torch.einsum("ir,oi...->or...", self.inputs.detach(), core)
            core = core.movedim(1, -1)  # inputs last: kernels then come out as torch is quickest with them
        self.modes = core.shape
        rank = min(domain_rank, indicators)
        own = torch.randn(rank - 1, core.numel()) * START * core.numel() ** -0.5
        self.core = nn.Parameter(torch.cat([own, core.reshape(1, -1)]))
        self.of_domains = None if rank == indicators else nn.Parameter(_directions(indicators, rank))

    def forward(self, indicators: Float[Tensor, "picked indicators"]) -> Float[Tensor, "picked ..."]:
        """The weights of each of these z."""
        coefficients = indicators if self.of_domains is None else indicators @ self.of_domains
        weights = (coefficients @ self.core).unflatten(1, self.modes)
        if self.outputs is not None:
            weights = torch.einsum("or,pr...->po...", self.outputs, weights)
        if self.inputs is not None:
            weights = weights @ self.inputs.mT
        return weights.movedim(-1, 2) if weights.ndim > 2 else weights


def _directions(indicators: int, rank: int) -> Tensor:
    """D before training: the last row has the last direction for itself, the others share the rest."""
    rows = torch.zeros(indicators, rank)
    rows[-1, -1] = 1.0
    if rank > 1:
        nn.init.orthogonal_(rows[:-1, :-1])
    return rows


def _leading_vectors(weights: Tensor, mode: int, share: float) -> nn.Parameter | None:
    """The first left singular vectors along a mode, as the higher-order SVD has them; None for all of them."""
    size = weights.shape[mode]
    rank = math.ceil(share * size)
    if rank == size:
        return None
    unfolded = weights.detach().movedim(mode, 0).flatten(1)
    _, vectors = torch.linalg.eigh(unfolded @ unfolded.T)  # by rising eigenvalues
    return nn.Parameter(vectors[:, -rank:].flip(1).contiguous())
