"""What `vmap` does with our own functions where a network is large: one run after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def run_by_run(
    function: type[torch.autograd.Function], runs: int, in_dims: Sequence[Any], inputs: Sequence[Any]
) -> tuple[Any, Any]:
    """The function of each run's inputs, stacked, and along which dimension. A loop is all that a GPU needs there.

    It is applied, not only computed: what stands around `vmap` may differentiate it too.
    """
    found = [
        function.apply(
            *(
                own.select(dim, run) if isinstance(dim, int) else own
                for own, dim in zip(inputs, in_dims, strict=True)
            )
        )
        for run in range(runs)
    ]
    if isinstance(found[0], Tensor):
        return torch.stack(found), 0
    stacked = tuple(torch.stack(values) for values in zip(*found, strict=True))
    return stacked, (0,) * len(stacked)
