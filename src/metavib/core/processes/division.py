"""How the images of a step are divided among processes, and how features and gradients come together again.

Every process has its own block of the samples of each domain and the whole of everything else. It passes its own
images through the backbone; the features of all processes are gathered, so that class means, heads and losses are
those of the whole batch, in each process alike. Four operations, in two pairs: the derivative of one is the other.

    gathered    own rows -> all rows            sliced      all rows -> own rows
    copied      parameters -> as they are       summed      values -> their sum over all processes

A tensor that all processes have alike has a derivative that all have alike and whole; a tensor of one process has
a derivative of its own. `copied` is where parameters pass from the first kind to the second: backward, the shares
that the processes' own images have in the gradient are summed. Because each derivative is again one of the four,
losses may be differentiated any number of times, by autograd or by torch.func.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from metavib.core.shapes import Float


@dataclass(frozen=True)
class Division:
    """Some samples of each domain, divided into as many blocks as there are processes, all of the same size.

    Where the samples do not suffice, the last sample fills the last blocks up, and does not count there.
    """

    rank: int
    size: int
    samples: int
    whole_images: bool = False  # every process has all images, and the backbone takes its own of them

    @property
    def block(self) -> int:
        """How many samples of a domain a process has."""
        return -(-self.samples // self.size)

    def own(self, values: Tensor, dim: int) -> Tensor:
        """Of values along all samples, those of this process's block."""
        first = self.rank * self.block
        places = torch.arange(first, first + self.block, device=values.device).clamp_max(self.samples - 1)
        return values.index_select(dim, places)

    def own_rows(self, values: Float[Tensor, "rows ..."]) -> Float[Tensor, "own ..."]:
        """Of rows in which the samples of some domains lie one after the other, those of this process's blocks."""
        return self.own(values.unflatten(0, (-1, self.samples)), dim=1).flatten(0, 1)


def gathered(own: Float[Tensor, "own ..."], division: Division) -> Float[Tensor, "rows ..."]:
    """The rows of all processes, domain after domain, from each process's own."""
    return _Gathered.apply(own, division)


def sliced(rows: Float[Tensor, "rows ..."], division: Division) -> Float[Tensor, "own ..."]:
    """A process's own rows of what all processes have alike; zeros fill the last blocks up."""
    return _Sliced.apply(rows, division)


def copied(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters as they are, for this process's own images; their gradient is that of all images."""
    return dict(zip(parameters, _Copied.apply(*parameters.values()), strict=True))


class _Gathered(Function):
    @staticmethod
    def forward(own: Tensor, division: Division) -> Tensor:
        everyone = own.new_empty(division.size * len(own), *own.shape[1:])
        dist.all_gather_into_tensor(everyone, own.contiguous())
        by_process = everyone.view(division.size, -1, division.block, *own.shape[1:])
        by_domain = by_process.transpose(0, 1).flatten(1, 2)  # [domains, processes x block, ...]
        return by_domain[:, : division.samples].flatten(0, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.division = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Sliced.apply(gradient, ctx.division), None


class _Sliced(Function):
    @staticmethod
    def forward(rows: Tensor, division: Division) -> Tensor:
        by_domain = rows.unflatten(0, (-1, division.samples))
        own = rows.new_zeros(by_domain.shape[0], division.block, *rows.shape[1:])
        first = division.rank * division.block
        real = by_domain[:, first : first + division.block]  # what fills the block up has no part in anything
        own[:, : real.shape[1]] = real
        return own.flatten(0, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.division = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Gathered.apply(gradient, ctx.division), None


class _Copied(Function):
    @staticmethod
    def forward(*values: Tensor) -> tuple[Tensor, ...]:
        # Not `view_as`, which forgets that weights of one input channel lie channels last: a CPU then pools the
        # maps that they give ten times as slowly.
        return tuple(torch.ops.aten.alias(value) for value in values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing is needed for the derivative."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return _Summed.apply(*gradients)


class _Summed(Function):
    @staticmethod
    def forward(*values: Tensor) -> tuple[Tensor, ...]:
        flat = torch.cat([value.reshape(-1) for value in values])  # one message for all of them
        dist.all_reduce(flat)
        parts = flat.split([value.numel() for value in values])
        return tuple(part.view(value.shape) for part, value in zip(parts, values, strict=True))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing is needed for the derivative."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return _Copied.apply(*gradients)
