"""From stored pixels to what the network wants, in one kernel, or two where the contrast changes.

`metavib.data.transforms` defines it: gather, crop and flip, colour, grey, normalise. The kernels read the bytes
from the store and write each value of the result once; the first only finds the mean grey that contrast is about.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _sampled(image, y, x, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, inside):
    """The value between pixels, bilinear, the border repeated; in [0, 1]."""
    x = tl.minimum(tl.maximum(x, 0.0), WIDTH - 1.0)
    y = tl.minimum(tl.maximum(y, 0.0), HEIGHT - 1.0)
    left = tl.floor(x)
    top = tl.floor(y)
    from_left = x - left
    from_top = y - top
    left_at = left.to(tl.int32)
    top_at = top.to(tl.int32)
    right_at = tl.minimum(left_at + 1, WIDTH - 1)
    bottom_at = tl.minimum(top_at + 1, HEIGHT - 1)
    upper_left = tl.load(image + top_at * WIDTH + left_at, mask=inside, other=0).to(tl.float32)
    upper_right = tl.load(image + top_at * WIDTH + right_at, mask=inside, other=0).to(tl.float32)
    lower_left = tl.load(image + bottom_at * WIDTH + left_at, mask=inside, other=0).to(tl.float32)
    lower_right = tl.load(image + bottom_at * WIDTH + right_at, mask=inside, other=0).to(tl.float32)
    upper = upper_left * (1.0 - from_left) + upper_right * from_left
    lower = lower_left * (1.0 - from_left) + lower_right * from_left
    return (upper * (1.0 - from_top) + lower * from_top) / 255.0


@triton.jit
def _place(own, position, smallest_crop, flip, widest, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Where in the stored image each pixel of the result comes from, by the image's own draws."""
    share = smallest_crop + (1.0 - smallest_crop) * tl.load(own)
    aspect = tl.exp((2.0 * tl.load(own + 1) - 1.0) * widest)
    width = tl.minimum(tl.sqrt(share * aspect), 1.0)
    height = tl.minimum(tl.sqrt(share / aspect), 1.0)
    centre_x = (2.0 * tl.load(own + 2) - 1.0) * (1.0 - width)
    centre_y = (2.0 * tl.load(own + 3) - 1.0) * (1.0 - height)
    scale_x = tl.where(tl.load(own + 4) < flip, -width, width)
    across = (2.0 * (position % WIDTH).to(tl.float32) + 1.0) / WIDTH - 1.0
    down = (2.0 * (position // WIDTH).to(tl.float32) + 1.0) / HEIGHT - 1.0
    x = ((scale_x * across + centre_x + 1.0) * WIDTH - 1.0) * 0.5
    y = ((height * down + centre_y + 1.0) * HEIGHT - 1.0) * 0.5
    return y, x


@triton.jit
def _between(value):
    return tl.minimum(tl.maximum(value, 0.0), 1.0)


@triton.jit
def _factor(own, place: tl.constexpr, largest):
    return 1.0 + (2.0 * tl.load(own + place) - 1.0) * largest


@triton.jit
def _brightened(
    store,
    row,
    own,
    position,
    inside,
    smallest_crop,
    flip,
    widest,
    colour,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    MOVED: tl.constexpr,
    COLOURED: tl.constexpr,
):
    """Red, green and blue after cropping and brightness; three times the same for grey images."""
    image = store + row * (CHANNELS * HEIGHT * WIDTH)
    if MOVED:
        y, x = _place(own, position, smallest_crop, flip, widest, HEIGHT, WIDTH)
        red = _sampled(image, y, x, HEIGHT, WIDTH, inside)
        green = red
        blue = red
        if CHANNELS == 3:
            green = _sampled(image + HEIGHT * WIDTH, y, x, HEIGHT, WIDTH, inside)
            blue = _sampled(image + 2 * HEIGHT * WIDTH, y, x, HEIGHT, WIDTH, inside)
    else:
        red = tl.load(image + position, mask=inside, other=0).to(tl.float32) / 255.0
        green = red
        blue = red
        if CHANNELS == 3:
            green = tl.load(image + HEIGHT * WIDTH + position, mask=inside, other=0).to(tl.float32) / 255.0
            blue = tl.load(image + 2 * HEIGHT * WIDTH + position, mask=inside, other=0).to(tl.float32) / 255.0
    if COLOURED:
        brightness = _factor(own, 5, colour)
        red = _between(red * brightness)
        green = _between(green * brightness)
        blue = _between(blue * brightness)
    return red, green, blue


@triton.jit
def _grey(red, green, blue, CHANNELS: tl.constexpr):
    if CHANNELS == 3:
        return 0.299 * red + 0.587 * green + 0.114 * blue
    else:
        return red


@triton.jit
def _sum_grey(
    store,
    rows,
    draws,
    partial,
    smallest_crop,
    flip,
    widest,
    colour,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    MOVED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    number = tl.program_id(0)
    position = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = position < HEIGHT * WIDTH
    row = tl.load(rows + number).to(tl.int64)
    red, green, blue = _brightened(
        store, row, draws + number * 9, position, inside, smallest_crop, flip, widest, colour,
        HEIGHT, WIDTH, CHANNELS, MOVED, True,
    )  # fmt: skip
    total = tl.sum(tl.where(inside, _grey(red, green, blue, CHANNELS), 0.0))
    tl.store(partial + number * tl.num_programs(1) + tl.program_id(1), total)


@triton.jit
def _prepare(
    store,
    rows,
    draws,
    partial,
    means,
    deviations,
    images,
    smallest_crop,
    flip,
    widest,
    colour,
    grey_share,
    PARTS,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    MOVED: tl.constexpr,
    COLOURED: tl.constexpr,
    GREYED: tl.constexpr,
    LOADED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    number = tl.program_id(0)
    position = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = position < HEIGHT * WIDTH
    row = tl.load(rows + number).to(tl.int64)
    own = draws + number * 9
    red, green, blue = _brightened(
        store, row, own, position, inside, smallest_crop, flip, widest, colour,
        HEIGHT, WIDTH, CHANNELS, MOVED, COLOURED,
    )  # fmt: skip
    if COLOURED:
        part = tl.arange(0, LOADED)
        sums = tl.load(partial + number * PARTS + part, mask=part < PARTS, other=0.0)
        middle = tl.sum(sums) / (HEIGHT * WIDTH)
        contrast = _factor(own, 6, colour)
        red = _between(middle + (red - middle) * contrast)
        green = _between(middle + (green - middle) * contrast)
        blue = _between(middle + (blue - middle) * contrast)
        saturation = _factor(own, 7, colour)
        grey = _grey(red, green, blue, CHANNELS)
        red = _between(grey + (red - grey) * saturation)
        green = _between(grey + (green - grey) * saturation)
        blue = _between(grey + (blue - grey) * saturation)
    if GREYED:
        becomes_grey = tl.load(own + 8) < grey_share
        grey = _grey(red, green, blue, CHANNELS)
        red = tl.where(becomes_grey, grey, red)
        green = tl.where(becomes_grey, grey, green)
        blue = tl.where(becomes_grey, grey, blue)
    # Channels last: that is how convolutions read them.
    to = images + (number.to(tl.int64) * (HEIGHT * WIDTH) + position) * CHANNELS
    tl.store(to, (red - tl.load(means)) / tl.load(deviations), mask=inside)
    if CHANNELS == 3:
        tl.store(to + 1, (green - tl.load(means + 1)) / tl.load(deviations + 1), mask=inside)
        tl.store(to + 2, (blue - tl.load(means + 2)) / tl.load(deviations + 2), mask=inside)


def prepare(
    store: Tensor,
    rows: Tensor,
    draws: Tensor | None,
    means: Tensor,
    deviations: Tensor,
    *,
    smallest_crop: float,
    flip: float,
    widest: float,
    colour: float,
    grey: float,
) -> Tensor:
    """The images at these rows of the store, changed by their draws (none: as they are) and normalised, float32.

    `widest` is the logarithm of the widest aspect of a crop.
    """
    count, (_, channels, height, width) = len(rows), store.shape
    images = torch.empty(count, height, width, channels, dtype=torch.float32, device=store.device)
    block = 1024
    parts = triton.cdiv(height * width, block)
    augmented = draws is not None
    coloured = augmented and colour > 0
    moved = augmented and (smallest_crop < 1 or flip > 0)
    draws = rows if draws is None else draws  # then nothing reads it
    partial = torch.empty(count if coloured else 0, parts, dtype=torch.float32, device=store.device)
    sizes = {"HEIGHT": height, "WIDTH": width, "CHANNELS": channels, "MOVED": moved, "BLOCK": block}
    grid = (count, parts)  # a GPU allows 65,535 along the second axis: less than the images of a wide stack
    changes = (smallest_crop, flip, widest, colour)
    if coloured:
        _sum_grey[grid](store, rows, draws, partial, *changes, **sizes)
    sizes |= {"COLOURED": coloured, "GREYED": augmented and grey > 0, "LOADED": triton.next_power_of_2(parts)}
    _prepare[grid](store, rows, draws, partial, means, deviations, images, *changes, grey, parts, **sizes)
    return images.permute(0, 3, 1, 2)
