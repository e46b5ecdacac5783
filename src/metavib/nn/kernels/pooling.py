"""3 x 3 max pooling with stride 2 and ReLU, for many runs at once: forward, back, and forward again.

A pooled value remembers which of the nine places of its window it came from (NOWHERE where the ReLU cut it off),
one byte each: all that the backward pass needs, and that pass's own.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

NOWHERE = tl.constexpr(9)
LOWEST = tl.constexpr(-3.0e38)


@triton.jit
def _pool(values, pooled, places, IMAGES, SIDE: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    half: tl.constexpr = SIDE // 2
    position = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = position < IMAGES * half * half
    n = position // (half * half)
    py = position // half % half
    px = position % half
    channel = tl.arange(0, CHANNELS)
    best = tl.full((BLOCK, CHANNELS), LOWEST, tl.float32)
    place = tl.zeros((BLOCK, CHANNELS), tl.int8)
    for offset in tl.static_range(9):
        y = 2 * py - 1 + offset // 3
        x = 2 * px - 1 + offset % 3
        seen = (y >= 0) & (y < SIDE) & (x >= 0) & (x < SIDE) & inside
        at = ((n * SIDE + y) * SIDE + x)[:, None] * CHANNELS + channel[None, :]
        value = tl.load(values + at, mask=seen[:, None], other=LOWEST).to(tl.float32)
        better = (value > best) | (value != value)  # noqa: PLR0124
        best = tl.where(better, value, best)
        place = tl.where(better, tl.full((BLOCK, CHANNELS), offset, tl.int8), place)
    cut_off = best <= 0
    place = tl.where(cut_off, tl.full((BLOCK, CHANNELS), NOWHERE, tl.int8), place)
    at = position[:, None] * CHANNELS + channel[None, :]
    tl.store(pooled + at, tl.where(cut_off, 0.0, best).to(pooled.dtype.element_ty), mask=inside[:, None])
    tl.store(places + at, place, mask=inside[:, None])


@triton.jit
def _pool_backward(
    gradients, places, scattered, IMAGES, SIDE: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr
):
    half: tl.constexpr = SIDE // 2
    position = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = position < IMAGES * SIDE * SIDE
    n = position // (SIDE * SIDE)
    y = position // SIDE % SIDE
    x = position % SIDE
    channel = tl.arange(0, CHANNELS)
    total = tl.zeros((BLOCK, CHANNELS), tl.float32)
    # A value lies in one window, or in two where its place is odd, in each direction.
    for window in tl.static_range(4):
        py = y // 2 + window // 2
        px = x // 2 + window % 2
        dy = y - 2 * py + 1
        dx = x - 2 * px + 1
        seen = inside & (dy >= 0) & (dx >= 0) & (py < half) & (px < half)
        at = ((n * half + py) * half + px)[:, None] * CHANNELS + channel[None, :]
        place = tl.load(places + at, mask=seen[:, None], other=NOWHERE)
        gradient = tl.load(gradients + at, mask=seen[:, None], other=0.0).to(tl.float32)
        total += tl.where(place == (dy * 3 + dx)[:, None], gradient, 0.0)
    at = position[:, None] * CHANNELS + channel[None, :]
    tl.store(scattered + at, total.to(scattered.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _select_places(
    values, places, selected, IMAGES, SIDE: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr
):
    half: tl.constexpr = SIDE // 2
    position = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = position < IMAGES * half * half
    n = position // (half * half)
    py = position // half % half
    px = position % half
    channel = tl.arange(0, CHANNELS)
    at = position[:, None] * CHANNELS + channel[None, :]
    place = tl.load(places + at, mask=inside[:, None], other=NOWHERE).to(tl.int32)
    y = 2 * py[:, None] - 1 + place // 3
    x = 2 * px[:, None] - 1 + place % 3
    source = ((n[:, None] * SIDE + y) * SIDE + x) * CHANNELS + channel[None, :]
    value = tl.load(values + source, mask=place < NOWHERE, other=0.0)
    tl.store(selected + at, value, mask=inside[:, None])


def pool(values: Tensor) -> tuple[Tensor, Tensor]:
    """Max pooling and ReLU of [R, N, side, side, channels], with the places for `pool_backward`."""
    runs, count, side, _, channels = values.shape
    half = side // 2
    pooled = values.new_empty(runs, count, half, half, channels)
    places = torch.empty_like(pooled, dtype=torch.int8)
    block = 32
    grid = (triton.cdiv(runs * count * half * half, block),)
    _pool[grid](values, pooled, places, runs * count, SIDE=side, CHANNELS=channels, BLOCK=block, num_warps=4)
    return pooled, places


def pool_backward(places: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of `pool`'s values."""
    runs, count, half, _, channels = gradient.shape
    side = 2 * half
    scattered = gradient.new_empty(runs, count, side, side, channels)
    block = 64
    grid = (triton.cdiv(runs * count * side * side, block),)
    _pool_backward[grid](
        gradient, places, scattered, runs * count, SIDE=side, CHANNELS=channels, BLOCK=block, num_warps=4
    )
    return scattered


def select(places: Tensor, values: Tensor) -> Tensor:
    """The transpose of `pool_backward`: the values [R, N, side, side, channels] at the places of `pool`."""
    runs, count, side, _, channels = values.shape
    half = side // 2
    selected = values.new_empty(runs, count, half, half, channels)
    block = 64
    grid = (triton.cdiv(runs * count * half * half, block),)
    _select_places[grid](
        values, places, selected, runs * count, SIDE=side, CHANNELS=channels, BLOCK=block, num_warps=4
    )
    return selected
