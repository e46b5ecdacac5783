"""Kernels for GPUs, written in Triton: what torch's own operators do not do well for stacked runs.

Each has a plain twin in torch operators that defines what it computes, and the tests compare the two. A module of
this package is imported only where `usable` said that it can be.
"""

import functools

import torch

from metavib.core.terminal import say

__all__ = ["adam", "images", "run_on"]


def run_on(device: torch.device) -> bool:
    """Whether the kernels can be used for tensors on this device."""
    return device.type == "cuda" and usable()


@functools.cache
def usable() -> bool:
    """Whether Triton can build kernels here. Where it cannot, that is said once; torch's operators do the work."""
    try:
        from metavib.nn.kernels import randomness

        randomness.normal(torch.zeros(1, dtype=torch.int64, device="cuda"), 2)
    except Exception as error:  # no Triton, no C compiler, an unknown GPU: there is another way
        reason = " ".join(str(error).split())[:120]
        say(
            f"metavib: training goes on without its own GPU kernels, slower: {type(error).__name__}: {reason}"
        )
        return False
    return True
