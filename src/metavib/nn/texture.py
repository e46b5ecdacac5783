"""What an image is made of, before any network: how much it varies at each scale, by Haar wavelets."""

from __future__ import annotations

import torch
from torch import Tensor

from metavib.core.shapes import Float

OCTAVES = 5  # at most: details of 2, 4, 8, 16 and 32 pixels
LEAST_SIDE = 7  # of the image whose details are taken
LEAST = 3e-3  # of a deviation: below it is no more than the rounding of pixels


def texture_of(
    images: Float[Tensor, "batch channels height width"],
) -> Float[Tensor, "batch statistics"]:
    """Brightness, log contrast, and at each octave the log size of horizontal, vertical and diagonal details."""
    grey = images.mean(dim=1)
    level = grey.mean(dim=(1, 2))
    contrast = (grey - level[:, None, None]).square().mean(dim=(1, 2)).sqrt()
    found = [level, (contrast + LEAST).log()]
    for _ in range(octaves_of(images.shape[-2], images.shape[-1])):
        height, width = (side // 2 * 2 for side in grey.shape[-2:])
        left, right = grey[:, :height, 0:width:2], grey[:, :height, 1:width:2]
        sums, differences = left + right, left - right
        details = (
            sums[:, 0::2] - sums[:, 1::2],
            differences[:, 0::2] + differences[:, 1::2],
            differences[:, 0::2] - differences[:, 1::2],
        )
        found += [((one / 2).square().mean(dim=(1, 2)).sqrt() + LEAST).log() for one in details]
        grey = (sums[:, 0::2] + sums[:, 1::2]) / 4
    return torch.stack(found, dim=1)


def octaves_of(height: int, width: int) -> int:
    """How often an image of this size is halved."""
    side, octaves = min(height, width), 0
    while side >= LEAST_SIDE and octaves < OCTAVES:
        side, octaves = side // 2, octaves + 1
    return octaves
