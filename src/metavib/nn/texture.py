"""What an image is made of, before any network: how much it varies at each scale, by Haar wavelets."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from metavib.core.shapes import Float

OCTAVES = 5  # at most: details of 2, 4, 8, 16 and 32 pixels
LEAST_SIDE = 7  # of the image whose details are taken
HAAR = [  # the sum, and details between rows, between columns and along diagonals; an orthonormal basis
    [[0.5, 0.5], [0.5, 0.5]],
    [[0.5, 0.5], [-0.5, -0.5]],
    [[0.5, -0.5], [0.5, -0.5]],
    [[0.5, -0.5], [-0.5, 0.5]],
]
LEAST = 3e-3  # of a deviation: below it is no more than the rounding of pixels


def texture_of(
    images: Float[Tensor, "batch channels height width"],
) -> Float[Tensor, "batch statistics"]:
    """Brightness, log contrast, and at each octave the log size of horizontal, vertical and diagonal details."""
    grey = images.mean(dim=1, keepdim=True)
    level = grey.mean(dim=(2, 3))
    kernels = grey.new_tensor(HAAR).unsqueeze(1)
    energies = [(grey - level[..., None, None]).square().mean(dim=(2, 3))]
    for _ in range(octaves_of(images.shape[-2], images.shape[-1])):
        found = nn.functional.conv2d(grey, kernels, stride=2)
        energies.append(found[:, 1:].square().mean(dim=(2, 3)))
        grey = found[:, :1] / 2
    return torch.cat([level, (torch.cat(energies, dim=1).sqrt() + LEAST).log()], dim=1)


def octaves_of(height: int, width: int) -> int:
    """How often an image of this size is halved."""
    side, octaves = min(height, width), 0
    while side >= LEAST_SIDE and octaves < OCTAVES:
        side, octaves = side // 2, octaves + 1
    return octaves
