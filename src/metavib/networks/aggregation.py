"""Aggregation modules: what a backbone has at several stages, brought together for each source domain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from metavib.networks.domain_classifiers import DomainClassifiers
from metavib.shapes import Float, Int


@final
class AggregationModules(nn.Module):
    """One module for each source domain: a chain of nodes along the stages, and a linear classifier.

    A node averages what came before to the size of its stage, joins both, and is a 1 x 1 convolution with ReLU.
    Nodes of all domains lie in one tensor, so that all modules are one product of matrices.
    """

    def __init__(self, domains: int, sizes: Sequence[int], width: int, classes: int) -> None:
        """`sizes` are the channels of the stages, the features' last; without further stages there is no node."""
        super().__init__()
        first, *others = sizes
        inputs = [before + own for before, own in zip([first, *[width] * len(others)], others, strict=False)]
        self.nodes = nn.ParameterList(_begun(domains, count, width) for count in inputs)
        self.biases = nn.ParameterList(torch.zeros(domains, 1, width) for _ in inputs)
        self.classifiers = DomainClassifiers(domains, width if others else first, classes)

    def aggregated(
        self,
        domains: Int[Tensor, "picked"],
        stages: Sequence[Float[Tensor, "shared samples ..."]],
    ) -> Float[Tensor, "picked samples width"]:
        """By the modules of these domains: each its own row of samples, or all of them the same ones."""
        rows = _rows(stages[0])
        for weight, bias, stage in zip(self.nodes, self.biases, stages[1:], strict=True):
            own = _rows(stage)
            before = _averaged(rows, own.shape[-2])
            shared = own.expand(len(before), *own.shape[1:])
            joined = torch.cat([before, shared], dim=-1)  # [picked or shared, samples, side, side, channels]
            product = joined.flatten(1, 3) @ weight.index_select(0, domains)
            rows = (product + bias.index_select(0, domains)).relu().unflatten(1, own.shape[1:4])
        return rows.flatten(2, 3).mean(dim=2).expand(len(domains), -1, -1)


def _begun(domains: int, inputs: int, width: int) -> nn.Parameter:
    """By He et al. (ICCV 2015), as the layers of our other networks."""
    return nn.Parameter(torch.randn(domains, inputs, width) * (2.0 / inputs) ** 0.5)


def _rows(stage: Float[Tensor, "shared samples ..."]) -> Float[Tensor, "shared samples side side channels"]:
    """Channels last; units are maps of one pixel."""
    return stage.movedim(2, -1) if stage.ndim == 5 else stage.unsqueeze(2).unsqueeze(2)


def _averaged(
    rows: Float[Tensor, "picked samples before before channels"], side: int
) -> Float[Tensor, "picked samples side side channels"]:
    """Averaged to maps of this side, over windows as adaptive pooling has them; maps as small already stay.

    By products of matrices, because torch's pooling of maps with their channels last is slow in stacked runs.
    """
    before = rows.shape[2]
    if before == side:
        return rows
    places, windows = (torch.arange(count, device=rows.device) for count in (before, side))
    first, end = windows * before // side, ((windows + 1) * before + side - 1) // side
    within = (places >= first.unsqueeze(-1)) & (places < end.unsqueeze(-1))
    share = within.to(rows.dtype) / (end - first).unsqueeze(-1)  # [side, before]
    narrow = share @ rows  # over the width, [picked, samples, before, side, channels]
    return (share @ narrow.flatten(3)).unflatten(-1, (side, -1))
