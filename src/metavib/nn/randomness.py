"""Keyed randomness: every draw is a function of (seed, purpose, step, index) and of nothing else.

There is no generator with a state. A draw hashes a 64-bit key and a counter (SplitMix64: Steele, Lea and
Flood, OOPSLA 2014), in tensor arithmetic on the device where the numbers are needed. So a checkpoint
carries no random state, a resumed run sees the draws of the uninterrupted one, the CPU and the GPU see the
same ones, and a key may be a tensor of many keys: then the draws of many runs come from one call.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from metavib.core.shapes import Float, Int
from metavib.nn import kernels

_GOLDEN_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)  # the constants of SplitMix64, as signed 64-bit integers
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)


def key_of(*parts: int | str) -> int:
    """A signed 64-bit key of a seed and the words and numbers that name a purpose."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def bits(
    key: int | Int[Tensor, "*runs"], shape: tuple[int, ...], device: torch.device | str | None = None
) -> Int[Tensor, ...]:
    """Independent random 64-bit integers of the shape; (*runs, *shape) where the key is a tensor of keys.

    They lie on the device, or where that is not said beside the key.
    """
    keys = torch.as_tensor(key, dtype=torch.int64, device=device)
    counter = torch.arange(1, math.prod(shape) + 1, dtype=torch.int64, device=keys.device)
    word = keys.unsqueeze(-1) + counter.mul_(_GOLDEN_GAMMA)
    word ^= _shifted(word, 30)  # in place: fresh memory costs more than the arithmetic
    word *= _MIX_1
    word ^= _shifted(word, 27)
    word *= _MIX_2
    word ^= _shifted(word, 31)
    return word.reshape((*keys.shape, *shape))


def uniform(
    key: int | Int[Tensor, "*runs"], shape: tuple[int, ...], device: torch.device | str | None = None
) -> Float[Tensor, ...]:
    """Uniform draws from [0, 1), float32 with all 24 bits of its mantissa random."""
    return _shifted(bits(key, shape, device), 40).to(torch.float32) * 2.0**-24


def normal(
    key: int | Int[Tensor, "*runs"], shape: tuple[int, ...], device: torch.device | str | None = None
) -> Float[Tensor, ...]:
    """Standard normal draws, float32, two from each 64-bit word (Box and Muller 1958)."""
    count = math.prod(shape)
    if isinstance(key, Tensor) and kernels.run_on(key.device):
        from metavib.nn.kernels import randomness

        return randomness.normal(key.reshape(-1), count).reshape((*key.shape, *shape))
    word = bits(key, ((count + 1) // 2,), device)
    # (0, 1], so that the logarithm is finite: the largest draw is sqrt(2 log 2^32) = 6.66.
    radius = _shifted(word, 32).add_(1).to(torch.float32).mul_(2.0**-32).log_().mul_(-2.0).sqrt_()
    angle = word.bitwise_and_(0xFFFFFFFF).to(torch.float32).mul_(2.0 * math.pi * 2.0**-32)
    draws = torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=-1)
    return draws[..., :count].reshape((*word.shape[:-1], *shape))


def permutation(key: int, count: int) -> Int[Tensor, "count"]:
    """A random order of `count` things, on the CPU."""
    return torch.argsort(bits(key, (count,)), stable=True)


def fold(key: int | Int[Tensor, "*runs"], number: int | Tensor) -> Int[Tensor, "*runs"]:
    """The key of one step (or index) of a purpose, in tensor arithmetic: no hashing of text in the loop."""
    return bits(torch.as_tensor(key, dtype=torch.int64) ^ number, (1,)).squeeze(-1)


def _shifted(word: Tensor, by: int) -> Tensor:
    """Logical shift to the right; torch's own keeps the sign."""
    return (word >> by).bitwise_and_((1 << (64 - by)) - 1)
