"""What `activation` selected, of other maps and biases: by these its ways back are differentiated.

Which values went through is fixed by then, so that a way back is linear in the gradient that it is given. Its
derivative takes a change of the gradients of maps and bias, and adds up, for each value that went through, that of
the place where it came from and that of its bias; nothing comes of a value that the ReLU cut off. Maps lie as in
`activation`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from metavib.kernels.activation import NOWHERE, sizes


@triton.jit
def _select(
    maps,
    bias,
    joined,
    selected,
    ROWS,
    WIDTH,
    OFFSET,
    CHANNELS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.arange(0, PADDED)
    inside = (row < ROWS)[:, None] & (channel < CHANNELS)[None, :]
    at = row[:, None] * WIDTH + OFFSET + channel[None, :]
    activated = tl.load(joined + at, mask=inside, other=0.0)
    value = tl.load(maps + row[:, None] * CHANNELS + channel[None, :], mask=inside, other=0.0).to(tl.float32)
    value += tl.load(bias + channel, mask=channel < CHANNELS, other=0.0).to(tl.float32)[None, :]
    value = tl.where(activated <= 0, 0.0, value)
    tl.store(selected + at, value.to(selected.dtype.element_ty), mask=inside)


@triton.jit
def _select_pooled(
    maps,
    bias,
    places,
    selected,
    ROWS,
    WIDTH,
    OFFSET,
    SIDE: tl.constexpr,
    HALF: tl.constexpr,
    CHANNELS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    n = row // (HALF * HALF)
    py = row // HALF % HALF
    px = row % HALF
    channel = tl.arange(0, PADDED)
    inside = (row < ROWS)[:, None] & (channel < CHANNELS)[None, :]
    at = row[:, None] * CHANNELS + channel[None, :]
    place = tl.load(places + at, mask=inside, other=NOWHERE).to(tl.int32)
    y = 2 * py[:, None] + place // 3
    x = 2 * px[:, None] + place % 3
    came = (n[:, None] * SIDE + y) * SIDE + x
    seen = inside & (place < NOWHERE)
    value = tl.load(maps + came * CHANNELS + channel[None, :], mask=seen, other=0.0).to(tl.float32)
    value += tl.load(bias + channel, mask=channel < CHANNELS, other=0.0).to(tl.float32)[None, :]
    value = tl.where(seen, value, 0.0)
    to = selected + row[:, None] * WIDTH + OFFSET + channel[None, :]
    tl.store(to, value.to(selected.dtype.element_ty), mask=inside)


def select(maps: Tensor, bias: Tensor, joined: Tensor, selected: Tensor, offset: int) -> None:
    """maps + bias where `activate` gave the joined channels a value, into the same of `selected`; else zero."""
    channels, rows = maps.shape[-1], maps[..., 0].numel()
    padded, block = sizes(channels)
    _select[(triton.cdiv(rows, block),)](
        maps,
        bias,
        joined,
        selected,
        rows,
        joined.shape[-1],
        offset,
        CHANNELS=channels,
        PADDED=padded,
        BLOCK=block,
        num_warps=4,
    )


def select_pooled(maps: Tensor, bias: Tensor, places: Tensor, selected: Tensor, offset: int) -> None:
    """The same at the places of `pool`."""
    count, half, _, channels = places.shape
    padded, block = sizes(channels)
    rows = count * half * half
    _select_pooled[(triton.cdiv(rows, block),)](
        maps,
        bias,
        places,
        selected,
        rows,
        selected.shape[-1],
        offset,
        SIDE=maps.shape[1],
        HALF=half,
        CHANNELS=channels,
        PADDED=padded,
        BLOCK=block,
        num_warps=4,
    )
