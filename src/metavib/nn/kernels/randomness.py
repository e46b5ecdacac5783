"""Normal draws from keys in one kernel; `metavib.nn.randomness` defines them."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _normal(keys, draws, COUNT, HALF, BLOCK: tl.constexpr):
    run = tl.program_id(1).to(tl.int64)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # SplitMix64; the constants are those of metavib.nn.randomness, as signed 64-bit integers.
    word = tl.load(keys + run) + (index.to(tl.int64) + 1) * -7046029254386353131
    word = (word ^ ((word >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    word = (word ^ ((word >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    word = word ^ ((word >> 31) & 0x1FFFFFFFF)
    high = ((word >> 32) & 0xFFFFFFFF) + 1
    radius = tl.sqrt(tl.log(high.to(tl.float32) * 2.3283064365386963e-10) * -2.0)  # 2^-32
    angle = (word & 0xFFFFFFFF).to(tl.float32) * 1.4629180792671596e-09  # 2 pi 2^-32
    to = draws + run * COUNT + index
    tl.store(to, radius * tl.cos(angle), mask=index < HALF)
    tl.store(to + HALF, radius * tl.sin(angle), mask=index + HALF < COUNT)


def normal(keys: Tensor, count: int) -> Tensor:
    """So many draws from each of the keys: [keys, count]."""
    draws = torch.empty(len(keys), count, dtype=torch.float32, device=keys.device)
    half, block = (count + 1) // 2, 512
    _normal[(triton.cdiv(half, block), len(keys))](keys, draws, count, half, BLOCK=block)
    return draws
