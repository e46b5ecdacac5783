"""Images as another domain might have them: known changes, to try a model on what it was not trained on.

They stand for the distance between a domain that features were learnt from and one that nobody has seen. Each is a
pure function of images in [0, 1]; none is fitted to anything. They were written down before any was tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from metavib.core.shapes import Images
from metavib.nn.randomness import key_of, normal, uniform


def turned(images: Images, degrees: float) -> Images:
    """Rotated around the middle; what comes in at the edges repeats the edge."""
    angle = math.radians(degrees)
    turn = [[math.cos(angle), -math.sin(angle), 0.0], [math.sin(angle), math.cos(angle), 0.0]]
    return _moved(images, turn)


def zoomed(images: Images, factor: float) -> Images:
    """The middle, larger by this factor; smaller where it is below 1."""
    return _moved(images, [[1 / factor, 0.0, 0.0], [0.0, 1 / factor, 0.0]])


def blurred(images: Images) -> Images:
    """At a third of the resolution."""
    size = images.shape[-2:]
    small = nn.functional.interpolate(
        images, size=[max(1, side // 3) for side in size], mode="bilinear", antialias=True
    )
    return nn.functional.interpolate(small, size=size, mode="bilinear", align_corners=False)


def noisy(images: Images, deviation: float) -> Images:
    """With Gaussian noise, the same for every batch."""
    noise = normal(key_of(0, "drift"), tuple(images.shape[1:]), images.device)
    rolled = torch.stack([noise.roll(shift * 7 + 1, dims=-1) for shift in range(len(images))])
    return (images + deviation * rolled).clamp(0, 1)


def paler(images: Images, contrast: float) -> Images:
    """With less contrast, around the mean of each image."""
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    return mean + contrast * (images - mean)


def inverted(images: Images) -> Images:
    """Swap black and white."""
    return 1 - images


def cluttered(images: Images, share: float) -> Images:
    """Through a pattern of large blotches, as on another ground."""
    blotches = uniform(key_of(0, "clutter"), (images.shape[1], 7, 7), images.device)
    ground = nn.functional.interpolate(blotches[None], size=images.shape[-2:], mode="bilinear")
    return ((1 - share) * images + share * (images - ground).abs()).clamp(0, 1)


DRIFTS: dict[str, Callable[[Tensor], Tensor]] = {
    "turned left": lambda images: turned(images, 20),
    "turned right": lambda images: turned(images, -20),
    "larger": lambda images: zoomed(images, 1.35),
    "smaller": lambda images: zoomed(images, 0.7),
    "blurred": blurred,
    "noisy": lambda images: noisy(images, 0.2),
    "paler": lambda images: paler(images, 0.4),
    "inverted": inverted,
    "cluttered": lambda images: cluttered(images, 0.7),
}


def foreign_images(count: int, channels: int, size: int, device: torch.device) -> Images:
    """Images of nothing: noise of every grain, blanks of every grey, stripes. A third of each."""
    third = -(-count // 3)
    parts: list[Tensor] = []
    for number in range(third):
        grain = max(2, size // (1 + number % 4))
        drawn = uniform(key_of(number, "foreign"), (1, channels, grain, grain), device)
        parts.append(nn.functional.interpolate(drawn, size=(size, size), mode="nearest"))
    for number in range(third):
        parts.append(torch.full((1, channels, size, size), (number % 11) / 10, device=device))
    ramp = torch.linspace(0, 1, size, device=device)
    for number in range(third):
        waves = (0.5 + 0.5 * (2 * math.pi * (1 + number % 7) * ramp + number).sin()).expand(
            channels, size, size
        )
        parts.append((waves.mT if number % 2 else waves)[None])
    return torch.cat(parts)[:count]


def _moved(images: Images, transform: list[list[float]]) -> Images:
    matrix = torch.tensor(transform, dtype=images.dtype, device=images.device)
    grid = nn.functional.affine_grid(
        matrix.expand(len(images), 2, 3), list(images.shape), align_corners=False
    )
    return nn.functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
