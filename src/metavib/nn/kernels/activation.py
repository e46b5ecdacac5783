"""One pass over the maps of a convolution: bias, ReLU, joining, and 3 x 3 max pooling with stride 2.

torch does each in a pass of its own, which together cost SqueezeNet more than its convolutions. Maps lie channels
last: a row is a pixel. `WIDTH` channels are joined, of which a call does `CHANNELS`, beginning with `OFFSET`. The
bias is added after pooling, where it is the same for a whole window, and so is the ReLU.

A pooled value remembers which of the nine places of its window it came from, NOWHERE where the ReLU cut it off.

A way back is linear in the gradient that it is given: which values went through is fixed by then. `select` and
`select_pooled` are its derivative. They take a change of the gradients of maps and bias, and add up, for each
value that went through, that of the place where it came from and that of its bias.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from metavib.nn.kernels.pooling import LOWEST, NOWHERE

_ELEMENTS = 4096  # of a program at a time
_SHARES = 1024  # programs that sum up the gradient of a bias


@triton.jit
def _activate(
    maps,
    bias,
    activated,
    joined,
    ROWS,
    WIDTH,
    OFFSET,
    SELECTED: tl.constexpr,
    CHANNELS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The ReLU cuts off what is not positive; where SELECTED, what was cut off in `activated`."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.arange(0, PADDED)
    inside = (row < ROWS)[:, None] & (channel < CHANNELS)[None, :]
    at = row[:, None] * WIDTH + OFFSET + channel[None, :]
    value = tl.load(maps + row[:, None] * CHANNELS + channel[None, :], mask=inside, other=0.0).to(tl.float32)
    value += tl.load(bias + channel, mask=channel < CHANNELS, other=0.0).to(tl.float32)[None, :]
    cut_off = value <= 0
    if SELECTED:
        cut_off = tl.load(activated + at, mask=inside, other=0.0) <= 0
    value = tl.where(cut_off, 0.0, value)  # NaN stays NaN
    tl.store(joined + at, value.to(joined.dtype.element_ty), mask=inside)


@triton.jit
def _activate_backward(
    gradients,
    joined,
    scattered,
    partial,
    ROWS,
    BLOCKS,
    WIDTH,
    OFFSET,
    CHANNELS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    share = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, PADDED)
    total = tl.zeros((PADDED,), tl.float32)
    for block in range(BLOCKS):
        row = (share * BLOCKS + block) * BLOCK + tl.arange(0, BLOCK)
        inside = (row < ROWS)[:, None] & (channel < CHANNELS)[None, :]
        at = row[:, None] * WIDTH + OFFSET + channel[None, :]
        value = tl.load(joined + at, mask=inside, other=0.0)
        gradient = tl.load(gradients + at, mask=inside, other=0.0).to(tl.float32)
        gradient = tl.where(value <= 0, 0.0, gradient)
        to = scattered + row[:, None] * CHANNELS + channel[None, :]
        tl.store(to, gradient.to(scattered.dtype.element_ty), mask=inside)
        total += tl.sum(gradient, axis=0)
    tl.store(partial + share * CHANNELS + channel, total, mask=channel < CHANNELS)


@triton.jit
def _activate_pooled(
    maps,
    bias,
    joined,
    places,
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
    best = tl.full((BLOCK, PADDED), LOWEST, tl.float32)
    place = tl.zeros((BLOCK, PADDED), tl.int8)
    for offset in tl.static_range(9):
        y = 2 * py + offset // 3
        x = 2 * px + offset % 3
        seen = inside & ((y < SIDE) & (x < SIDE))[:, None]
        at = ((n * SIDE + y) * SIDE + x)[:, None] * CHANNELS + channel[None, :]
        value = tl.load(maps + at, mask=seen, other=LOWEST).to(tl.float32)
        better = (value > best) | (value != value)  # noqa: PLR0124  # NaN goes on, as in torch
        best = tl.where(better, value, best)
        place = tl.where(better, tl.full((BLOCK, PADDED), offset, tl.int8), place)
    best += tl.load(bias + channel, mask=channel < CHANNELS, other=0.0).to(tl.float32)[None, :]
    cut_off = best <= 0
    to = joined + row[:, None] * WIDTH + OFFSET + channel[None, :]
    tl.store(to, tl.where(cut_off, 0.0, best).to(joined.dtype.element_ty), mask=inside)
    place = tl.where(cut_off, tl.full((BLOCK, PADDED), NOWHERE, tl.int8), place)
    tl.store(places + row[:, None] * CHANNELS + channel[None, :], place, mask=inside)


@triton.jit
def _select_pooled(
    maps,
    bias,
    places,
    joined,
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
    to = joined + row[:, None] * WIDTH + OFFSET + channel[None, :]
    tl.store(to, value.to(joined.dtype.element_ty), mask=inside)


@triton.jit
def _window(
    gradients, places, n, y, x, inside, channel, WIDTH, OFFSET, HALF: tl.constexpr, CHANNELS: tl.constexpr
):
    """Of this pooled value of each image: the place that it came from, and the gradient that came to it."""
    seen = inside & ((y >= 0) & (x >= 0) & (y < HALF) & (x < HALF))[:, None]
    row = ((n * HALF + y) * HALF + x).to(tl.int64)[:, None]
    place = tl.load(places + row * CHANNELS + channel[None, :], mask=seen, other=NOWHERE)
    came = tl.load(gradients + row * WIDTH + OFFSET + channel[None, :], mask=seen, other=0.0)
    return place, came.to(tl.float32)


@triton.jit
def _put(scattered, gradient, n, y, x, inside, channel, SIDE: tl.constexpr, CHANNELS: tl.constexpr):
    seen = inside & ((y < SIDE) & (x < SIDE))[:, None]
    at = ((n * SIDE + y) * SIDE + x).to(tl.int64)[:, None] * CHANNELS + channel[None, :]
    tl.store(scattered + at, gradient.to(scattered.dtype.element_ty), mask=seen)


@triton.jit
def _activate_pooled_backward(
    gradients,
    places,
    scattered,
    partial,
    ROWS,
    BLOCKS,
    WIDTH,
    OFFSET,
    SIDE: tl.constexpr,
    HALF: tl.constexpr,
    CHANNELS: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # A row is a square of four values: together they lie in four windows, which are then read only once.
    SQUARES: tl.constexpr = (SIDE + 1) // 2
    share = tl.program_id(0)
    channel = tl.arange(0, PADDED)
    total = tl.zeros((PADDED,), tl.float32)
    for block in range(BLOCKS):
        row = (share * BLOCKS + block) * BLOCK + tl.arange(0, BLOCK)
        n = row // (SQUARES * SQUARES)
        y = row // SQUARES % SQUARES
        x = row % SQUARES
        inside = (row < ROWS)[:, None] & (channel < CHANNELS)[None, :]
        place, came = _window(gradients, places, n, y, x, inside, channel, WIDTH, OFFSET, HALF, CHANNELS)
        upper_left = tl.where(place == 0, came, 0.0)
        upper_right = tl.where(place == 1, came, 0.0)
        lower_left = tl.where(place == 3, came, 0.0)
        lower_right = tl.where(place == 4, came, 0.0)
        _put(scattered, lower_right, n, 2 * y + 1, 2 * x + 1, inside, channel, SIDE, CHANNELS)
        # Each window is the first of one square.
        total += tl.sum(tl.where(place == NOWHERE, 0.0, came), axis=0)
        place, came = _window(gradients, places, n, y, x - 1, inside, channel, WIDTH, OFFSET, HALF, CHANNELS)
        upper_left += tl.where(place == 2, came, 0.0)
        lower_left += tl.where(place == 5, came, 0.0)
        _put(scattered, lower_left, n, 2 * y + 1, 2 * x, inside, channel, SIDE, CHANNELS)
        place, came = _window(gradients, places, n, y - 1, x, inside, channel, WIDTH, OFFSET, HALF, CHANNELS)
        upper_left += tl.where(place == 6, came, 0.0)
        upper_right += tl.where(place == 7, came, 0.0)
        _put(scattered, upper_right, n, 2 * y, 2 * x + 1, inside, channel, SIDE, CHANNELS)
        place, came = _window(
            gradients, places, n, y - 1, x - 1, inside, channel, WIDTH, OFFSET, HALF, CHANNELS
        )
        upper_left += tl.where(place == 8, came, 0.0)
        _put(scattered, upper_left, n, 2 * y, 2 * x, inside, channel, SIDE, CHANNELS)
    tl.store(partial + share * CHANNELS + channel, total, mask=channel < CHANNELS)


def activate(maps: Tensor, bias: Tensor, joined: Tensor, offset: int) -> None:
    """relu(maps + bias), maps [N, height, width, channels], into the joined channels from `offset` on."""
    _activated(maps, bias, joined, joined, offset, selected=False)


def select(maps: Tensor, bias: Tensor, activated: Tensor, joined: Tensor, offset: int) -> None:
    """maps + bias where `activate` gave the channels a value, into the same channels of `joined`; else zero."""
    _activated(maps, bias, activated, joined, offset, selected=True)


def _activated(
    maps: Tensor, bias: Tensor, activated: Tensor, joined: Tensor, offset: int, *, selected: bool
) -> None:
    rows, sizes = maps[..., 0].numel(), _sizes(maps.shape[-1])
    grid = (triton.cdiv(rows, sizes["BLOCK"]),)
    _activate[grid](maps, bias, activated, joined, rows, joined.shape[-1], offset, SELECTED=selected, **sizes)


def activate_backward(gradient: Tensor, joined: Tensor, offset: int, channels: int) -> tuple[Tensor, Tensor]:
    """The gradients of `activate`'s maps and bias (float32)."""
    rows, sizes = joined[..., 0].numel(), _sizes(channels)
    scattered = gradient.new_empty(*gradient.shape[:-1], channels)
    shares, blocks = _shares(rows, sizes["BLOCK"])
    partial = torch.empty(shares, channels, dtype=torch.float32, device=gradient.device)
    _activate_backward[(shares,)](
        gradient, joined, scattered, partial, rows, blocks, joined.shape[-1], offset, **sizes
    )
    return scattered, partial.sum(dim=0)


def pool(maps: Tensor, bias: Tensor, joined: Tensor, offset: int) -> Tensor:
    """The activated and pooled maps, and the places of the maxima, which `pool_backward` needs."""
    channels, (count, half) = maps.shape[-1], joined.shape[:2]
    places = torch.empty(count, half, half, channels, dtype=torch.int8, device=maps.device)
    rows, sizes = count * half * half, _sizes(channels, maps.shape[1], half)
    grid = (triton.cdiv(rows, sizes["BLOCK"]),)
    _activate_pooled[grid](maps, bias, joined, places, rows, joined.shape[-1], offset, **sizes)
    return places


def select_pooled(maps: Tensor, bias: Tensor, places: Tensor, joined: Tensor, offset: int) -> None:
    """The values at the places that `pool` chose."""
    count, half, _, channels = places.shape
    rows, sizes = count * half * half, _sizes(channels, maps.shape[1], half)
    grid = (triton.cdiv(rows, sizes["BLOCK"]),)
    _select_pooled[grid](maps, bias, places, joined, rows, joined.shape[-1], offset, **sizes)


def pool_backward(gradient: Tensor, places: Tensor, side: int, offset: int) -> tuple[Tensor, Tensor]:
    """The gradients of `pool`'s maps and bias (float32)."""
    count, half, _, channels = places.shape
    scattered = gradient.new_empty(count, side, side, channels)
    rows, sizes = count * ((side + 1) // 2) ** 2, _sizes(channels, side, half)
    sizes["BLOCK"] = max(sizes["BLOCK"] // 2, 1)  # each row is four values
    shares, blocks = _shares(rows, sizes["BLOCK"])
    partial = torch.empty(shares, channels, dtype=torch.float32, device=gradient.device)
    _activate_pooled_backward[(shares,)](
        gradient, places, scattered, partial, rows, blocks, gradient.shape[-1], offset, **sizes
    )
    return scattered, partial.sum(dim=0)


def pooled_side(side: int) -> int:
    """The side after 3 x 3 pooling with stride 2, where the last window may hang over (torch's ceil_mode)."""
    return -(-(side - 3) // 2) + 1


def _sizes(channels: int, side: int | None = None, half: int | None = None) -> dict[str, int]:
    """Sizes of a kernel: channels, also as a power of two, rows at a time, and sides where it pools."""
    padded = triton.next_power_of_2(channels)
    sizes = {"CHANNELS": channels, "PADDED": padded, "BLOCK": max(_ELEMENTS // padded, 1), "num_warps": 4}
    return sizes if side is None or half is None else sizes | {"SIDE": side, "HALF": half}


def _shares(rows: int, block: int) -> tuple[int, int]:
    """Programs, and the blocks of rows that each goes through."""
    shares = min(_SHARES, triton.cdiv(rows, block))
    return shares, triton.cdiv(rows, block * shares)
