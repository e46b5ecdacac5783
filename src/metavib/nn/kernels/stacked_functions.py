"""Rules of `vmap` for functions of our own: one run after another, or a kernel that takes all runs at once."""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor


class RunByRun(torch.autograd.Function):
    """A function of stacked runs one after another. Of a large network a loop is all that a GPU needs."""

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        """It is applied, not only computed: what stands around `vmap` may differentiate it too."""
        found = []
        for run in range(info.batch_size):
            pairs = zip(inputs, in_dims, strict=True)
            found.append(
                cls.apply(*(own.select(dim, run) if isinstance(dim, int) else own for own, dim in pairs))
            )
        if isinstance(found[0], Tensor):
            return torch.stack(found), 0
        stacked = tuple(torch.stack(values) for values in zip(*found, strict=True))
        return stacked, (0,) * len(stacked)


class AllRuns(torch.autograd.Function):
    """A function whose kernel takes all runs in one call. A run alone is a stack of one."""

    @staticmethod
    @abstractmethod
    def of_runs(*inputs: Any) -> Any:
        """The function of tensors [runs, ...]; its results have the runs along their first dimension too."""

    @classmethod
    def forward(cls, *inputs: Any) -> Any:
        found = cls.of_runs(*(own[None] if isinstance(own, Tensor) else own for own in inputs))
        return found[0] if isinstance(found, Tensor) else tuple(own[0] for own in found)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing is needed for the derivative."""

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        stacked = []
        for own, dim in zip(inputs, in_dims, strict=True):
            if dim is not None:
                stacked.append(own.movedim(dim, 0))
            else:  # what all runs share; settings are not tensors
                stacked.append(own.expand(info.batch_size, *own.shape) if isinstance(own, Tensor) else own)
        found = cls.of_runs(*stacked)
        return found, 0 if isinstance(found, Tensor) else (0,) * len(found)
