"""3 x 3 convolution for many runs at once, each with its own weights; the first layer with its pooling and ReLU.

cuDNN has grouped convolutions for this, but for a few channels a group they are several times slower than the
memory allows. Here a run is a row of the grid. Images lie channels last; `R` is the number of runs, `N` of images.
The first layer never writes the map that it pools (kernels/pooling.py says what its `places` are).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from metavib.nn.kernels.pooling import LOWEST, NOWHERE


@triton.jit
def _first_patch(image, py, px, offset: tl.constexpr, tap, inside, SIDE: tl.constexpr):
    """The pixels that place `offset` of each pooling window sees: nine, and a one that carries the bias."""
    y = 2 * py - 1 + offset // 3
    x = 2 * px - 1 + offset % 3
    row = y[:, None] + tap[None, :] // 3 - 1
    column = x[:, None] + tap[None, :] % 3 - 1
    seen = (row >= 0) & (row < SIDE) & (column >= 0) & (column < SIDE) & (tap[None, :] < 9) & inside[:, None]
    patch = tl.load(image[:, None] + row * SIDE + column, mask=seen, other=0.0)
    patch = tl.where(tap[None, :] == 9, 1.0, patch)
    counts = (y >= 0) & (y < SIDE) & (x >= 0) & (x < SIDE)
    return patch, counts


@triton.jit
def _first_forward(
    images, weights, pooled, places, N, SIDE: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr
):
    run = tl.program_id(1).to(tl.int64)
    half: tl.constexpr = SIDE // 2
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = position < N * half * half
    n = position // (half * half)
    py = position // half % half
    px = position % half
    tap = tl.arange(0, 16)
    channel = tl.arange(0, CHANNELS)
    image = images + (run * N + n) * (SIDE * SIDE)
    weight = tl.load(weights + run * 16 * CHANNELS + tap[:, None] * CHANNELS + channel[None, :])
    best = tl.full((BLOCK, CHANNELS), LOWEST, tl.float32)
    place = tl.zeros((BLOCK, CHANNELS), tl.int8)
    for offset in tl.static_range(9):
        patch, counts = _first_patch(image, py, px, offset, tap, inside, SIDE)
        value = tl.dot(patch.to(weight.dtype), weight, input_precision="ieee")
        # What is not equal to itself is NaN, which goes on, as in torch.
        better = ((value > best) | (value != value)) & counts[:, None]  # noqa: PLR0124
        best = tl.where(better, value, best)
        place = tl.where(better, tl.full((BLOCK, CHANNELS), offset, tl.int8), place)
    cut_off = best <= 0
    place = tl.where(cut_off, tl.full((BLOCK, CHANNELS), NOWHERE, tl.int8), place)
    at = (run * N * half * half + position[:, None]) * CHANNELS + channel[None, :]
    tl.store(pooled + at, tl.where(cut_off, 0.0, best).to(pooled.dtype.element_ty), mask=inside[:, None])
    tl.store(places + at, place, mask=inside[:, None])


@triton.jit
def _first_backward(
    images,
    gradients,
    places,
    partial,
    N,
    blocks,
    SIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    run = tl.program_id(1).to(tl.int64)
    share = tl.program_id(0)
    half: tl.constexpr = SIDE // 2
    tap = tl.arange(0, 16)
    channel = tl.arange(0, CHANNELS)
    total = tl.zeros((16, CHANNELS), tl.float32)
    for block in range(blocks):
        position = (share * blocks + block) * BLOCK + tl.arange(0, BLOCK)
        inside = position < N * half * half
        n = position // (half * half)
        py = position // half % half
        px = position % half
        image = images + (run * N + n) * (SIDE * SIDE)
        at = (run * N * half * half + position[:, None]) * CHANNELS + channel[None, :]
        gradient = tl.load(gradients + at, mask=inside[:, None], other=0.0)
        place = tl.load(places + at, mask=inside[:, None], other=NOWHERE)
        for offset in tl.static_range(9):
            patch, _ = _first_patch(image, py, px, offset, tap, inside, SIDE)
            here = tl.where(place == offset, gradient, 0.0).to(gradient.dtype)
            total += tl.dot(tl.trans(patch).to(gradient.dtype), here, input_precision="ieee")
    to = partial + (run * tl.num_programs(0) + share) * 16 * CHANNELS
    tl.store(to + tap[:, None] * CHANNELS + channel[None, :], total)


@triton.jit
def _convolve(
    inputs,
    weights,
    bias,
    outputs,
    N,
    SIDE: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BIASED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    run = tl.program_id(1).to(tl.int64)
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = position < N * SIDE * SIDE
    y = position // SIDE % SIDE
    x = position % SIDE
    source = tl.arange(0, INPUTS)
    channel = tl.arange(0, OUTPUTS)
    total = tl.zeros((BLOCK, OUTPUTS), tl.float32)
    here = inputs + (run * N * SIDE * SIDE + position[:, None]) * INPUTS + source[None, :]
    weight_at = weights + run * 9 * INPUTS * OUTPUTS + source[:, None] * OUTPUTS + channel[None, :]
    for tap in tl.static_range(9):
        dy = tap // 3 - 1
        dx = tap % 3 - 1
        seen = (y + dy >= 0) & (y + dy < SIDE) & (x + dx >= 0) & (x + dx < SIDE) & inside
        values = tl.load(here + (dy * SIDE + dx) * INPUTS, mask=seen[:, None], other=0.0)
        weight = tl.load(weight_at + tap * INPUTS * OUTPUTS)
        total += tl.dot(values, weight, input_precision="ieee")
    if BIASED:
        total += tl.load(bias + run * OUTPUTS + channel)[None, :].to(tl.float32)
    at = (run * N * SIDE * SIDE + position[:, None]) * OUTPUTS + channel[None, :]
    tl.store(outputs + at, total.to(outputs.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _weight_gradient(
    inputs,
    gradients,
    partial,
    N,
    blocks,
    SIDE: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    run = tl.program_id(1).to(tl.int64)
    share = tl.program_id(0)
    dy = tl.program_id(2) - 1  # each program does one row of the 3 x 3 weights
    source = tl.arange(0, INPUTS)
    channel = tl.arange(0, OUTPUTS)
    left = tl.zeros((INPUTS, OUTPUTS), tl.float32)
    middle = tl.zeros((INPUTS, OUTPUTS), tl.float32)
    right = tl.zeros((INPUTS, OUTPUTS), tl.float32)
    for block in range(blocks):
        position = (share * blocks + block) * BLOCK + tl.arange(0, BLOCK)
        y = position // SIDE % SIDE
        x = position % SIDE
        row_seen = (y + dy >= 0) & (y + dy < SIDE) & (position < N * SIDE * SIDE)
        base = run * N * SIDE * SIDE + position[:, None]
        gradient = tl.load(gradients + base * OUTPUTS + channel[None, :], mask=row_seen[:, None], other=0.0)
        here = inputs + (base + dy * SIDE) * INPUTS + source[None, :]
        values = tl.load(here - INPUTS, mask=(row_seen & (x > 0))[:, None], other=0.0)
        left += tl.dot(tl.trans(values), gradient, input_precision="ieee")
        values = tl.load(here, mask=row_seen[:, None], other=0.0)
        middle += tl.dot(tl.trans(values), gradient, input_precision="ieee")
        values = tl.load(here + INPUTS, mask=(row_seen & (x < SIDE - 1))[:, None], other=0.0)
        right += tl.dot(tl.trans(values), gradient, input_precision="ieee")
    to = partial + ((run * tl.num_programs(0) + share) * 9 + (dy + 1) * 3) * INPUTS * OUTPUTS
    to += source[:, None] * OUTPUTS + channel[None, :]
    tl.store(to, left)
    tl.store(to + INPUTS * OUTPUTS, middle)
    tl.store(to + 2 * INPUTS * OUTPUTS, right)


def first_layer(images: Tensor, weights: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Grey images [R, N, side, side] -> pooled [R, N, side/2, side/2, channels] and their places."""
    runs, count, side, _ = images.shape
    channels = weights.shape[1]
    packed = images.new_zeros(runs, 16, channels)  # nine taps, the bias, nothing
    packed[:, :9] = weights.reshape(runs, channels, 9).mT
    packed[:, 9] = bias
    half = side // 2
    pooled = images.new_empty(runs, count, half, half, channels)
    places = torch.empty_like(pooled, dtype=torch.int8)
    block = 64
    grid = (triton.cdiv(count * half * half, block), runs)
    _first_forward[grid](
        images, packed, pooled, places, count, SIDE=side, CHANNELS=channels, BLOCK=block, num_warps=2
    )
    return pooled, places


def first_layer_backward(images: Tensor, places: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of weights [R, channels, 1, 3, 3] and bias [R, channels], float32."""
    runs, count, side, _ = images.shape
    channels = gradient.shape[-1]
    block, shares = 128, _shares(runs)
    blocks = triton.cdiv(count * (side // 2) ** 2, block * shares)
    partial = torch.empty(runs, shares, 16, channels, dtype=torch.float32, device=images.device)
    sizes = {"SIDE": side, "CHANNELS": channels, "BLOCK": block, "num_warps": 4}
    _first_backward[(shares, runs)](images, gradient, places, partial, count, blocks, **sizes)
    total = partial.sum(dim=1)
    return total[:, :9].mT.reshape(runs, channels, 1, 3, 3), total[:, 9]


def convolve(inputs: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
    """[R, N, side, side, inputs] with weights [R, outputs, inputs, 3, 3] -> [R, N, side, side, outputs]."""
    runs, count, side, _, channels = inputs.shape
    packed = weights.permute(0, 3, 4, 2, 1).contiguous()
    outputs = inputs.new_empty(runs, count, side, side, weights.shape[1])
    block = 128
    grid = (triton.cdiv(count * side * side, block), runs)
    sizes = {"SIDE": side, "INPUTS": channels, "OUTPUTS": weights.shape[1], "BLOCK": block, "num_warps": 4}
    _convolve[grid](inputs, packed, bias, outputs, count, BIASED=bias is not None, **sizes)
    return outputs


def input_gradient(gradient: Tensor, weights: Tensor) -> Tensor:
    """The gradient of `convolve`'s inputs: the same convolution with the weights turned round."""
    return convolve(gradient, weights.flip(-1, -2).transpose(1, 2), None)


def weight_gradient(inputs: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of `convolve`'s weights [R, outputs, inputs, 3, 3], float32."""
    runs, count, side, _, channels = inputs.shape
    outputs = gradient.shape[-1]
    block, shares = 32, _shares(runs)
    blocks = triton.cdiv(count * side * side, block * shares)
    partial = torch.empty(runs, shares, 9, channels, outputs, dtype=torch.float32, device=inputs.device)
    sizes = {"SIDE": side, "INPUTS": channels, "OUTPUTS": outputs, "BLOCK": block, "num_warps": 2}
    _weight_gradient[(shares, runs, 3)](inputs, gradient, partial, count, blocks, **sizes)
    return partial.sum(dim=1).reshape(runs, 3, 3, channels, outputs).permute(0, 4, 3, 1, 2)


def _shares(runs: int) -> int:
    """Into how many parts the images of a run are divided, so that a GPU of some 130 processors is busy."""
    return max(4, triton.cdiv(132 * 8, runs))
