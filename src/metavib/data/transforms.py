"""Transforms between the cache and the network, in batches, on the training device."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from metavib.core.settings import Settings, setting
from metavib.core.shapes import Float, Images, Int, Num
from metavib.nn import kernels


class Preprocessing(NamedTuple):
    """How a network wants its images: side, channels, and the normalisation after scaling to [0, 1]."""

    size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bilinear"  # by which images are brought to the size

    @property
    def bytes(self) -> int:
        """The bytes of an image before it is scaled."""
        return self.channels * self.size * self.size

    def __call__(self, images: Num[Tensor, "batch channels height width"]) -> Images:
        """Pixels as the network wants them, from bytes or from floats that are scaled already."""
        return self.normalised(_scaled(images))

    def normalised(self, images: Images) -> Images:
        """(pixels in [0, 1] - mean) / std."""
        if set(self.mean) == {0.0} and set(self.std) == {1.0}:
            return images
        return (images - _by_channel(self.mean, images.device)) / _by_channel(self.std, images.device)


@dataclass(frozen=True)
class Augmentation(Settings):
    """Random changes of training images, each image its own. Validation and test images never pass here."""

    smallest_crop: float = setting(
        1.0, "smallest share of the area that a random crop keeps; 1 means no crop", above=0, maximum=1
    )
    flip: float = setting(0.0, "probability of a mirror image", minimum=0, maximum=1)
    colour: float = setting(
        0.0, "largest relative change of brightness, contrast and saturation", minimum=0, maximum=1
    )
    grey: float = setting(0.0, "probability of a grey image", minimum=0, maximum=1)

    @property
    def active(self) -> bool:
        """Whether anything is changed at all."""
        return self != Augmentation()


DRAWS_PER_IMAGE = 9  # uniform numbers that `augment` takes for each image
GREY_WEIGHTS = (0.299, 0.587, 0.114)  # ITU-R 601, as Pillow and torchvision have it


def augment(
    images: Images,
    settings: Augmentation,
    draws: Float[Tensor, "batch draws"],
) -> Images:
    """Crop, flip, colour and grey of images in [0, 1], each by its own row of uniform draws."""
    area, shape, left, top, flip, brightness, contrast, saturation, grey = draws.unbind(dim=-1)
    if settings.smallest_crop < 1 or settings.flip > 0:
        images = _crop_and_flip(images, settings, area, shape, left, top, flip < settings.flip)
    if settings.colour > 0:
        images = _away_from(0.0, images, brightness, settings.colour)
        middle = _grey(images).mean(dim=(1, 2, 3), keepdim=True)
        images = _away_from(middle, images, contrast, settings.colour)
        images = _away_from(_grey(images), images, saturation, settings.colour)
    if settings.grey > 0:
        images = torch.where((grey < settings.grey).view(-1, 1, 1, 1), _grey(images), images)
    return images


def prepare(
    stored: Num[Tensor, "stored channels height width"],
    rows: Int[Tensor, "batch"],
    preprocessing: Preprocessing,
    settings: Augmentation,
    draws: Float[Tensor, "batch draws"] | None,
) -> Images:
    """The stored images at these rows, augmented by their draws where there are any, as the network wants them."""
    if stored.dtype == torch.uint8 and kernels.run_on(stored.device):
        from metavib.nn.kernels import images as kernel

        return kernel.prepare(
            stored,
            rows,
            draws,
            _by_channel(preprocessing.mean, stored.device),
            _by_channel(preprocessing.std, stored.device),
            smallest_crop=settings.smallest_crop,
            flip=settings.flip,
            widest=_widest(settings),
            colour=settings.colour,
            grey=settings.grey,
        )
    if draws is None:
        return preprocessing(stored[rows])
    return preprocessing.normalised(augment(_scaled(stored[rows]), settings, draws))


def _scaled(stored: Tensor) -> Tensor:
    """Bytes as numbers in [0, 1]; floats as they are."""
    return stored if stored.is_floating_point() else stored.to(torch.float32).div_(255.0)


def _widest(settings: Augmentation) -> float:
    """The logarithm of the widest aspect of a crop, 4:3."""
    return math.log(4 / 3) if settings.smallest_crop < 1 else 0.0


def _crop_and_flip(
    images: Tensor,
    settings: Augmentation,
    area: Tensor,
    shape: Tensor,
    left: Tensor,
    top: Tensor,
    flip: Tensor,
) -> Tensor:
    """A random part of the image, its area and its aspect (3:4 to 4:3) drawn, stretched to the whole."""
    share = settings.smallest_crop + (1.0 - settings.smallest_crop) * area
    aspect = torch.exp((2.0 * shape - 1.0) * _widest(settings))
    width = torch.sqrt(share * aspect).clamp(max=1.0)
    height = torch.sqrt(share / aspect).clamp(max=1.0)
    # affine_grid's coordinates run from -1 to 1: the part's centre lies within what its size leaves free.
    centre_x = (2.0 * left - 1.0) * (1.0 - width)
    centre_y = (2.0 * top - 1.0) * (1.0 - height)
    scale_x = torch.where(flip, -width, width)
    zero = torch.zeros_like(width)
    rows = [torch.stack([scale_x, zero, centre_x], dim=-1), torch.stack([zero, height, centre_y], dim=-1)]
    grid = nn.functional.affine_grid(torch.stack(rows, dim=-2), list(images.shape), align_corners=False)
    return nn.functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


def _away_from(middle: float | Tensor, images: Tensor, draw: Tensor, largest_change: float) -> Tensor:
    """Further from the middle, or nearer: from black it is brightness, from a mean grey contrast."""
    factor = (1.0 + (2.0 * draw - 1.0) * largest_change).view(-1, 1, 1, 1)
    return (middle + (images - middle) * factor).clamp(0.0, 1.0)


def _grey(images: Tensor) -> Tensor:
    """The image without colour, in as many channels; an image of one channel is grey already."""
    if images.shape[1] == 1:
        return images
    weights = _by_channel(GREY_WEIGHTS, images.device)
    return (images * weights).sum(dim=1, keepdim=True).expand_as(images)


@functools.cache
def _by_channel(values: tuple[float, ...], device: torch.device) -> Float[Tensor, "1 channels 1 1"]:
    """One number for each channel, put on the device once: a copy in every step would make it wait."""
    return torch.tensor(values, device=device).view(1, -1, 1, 1)


def with_channels(pixels: np.ndarray, channels: int) -> np.ndarray:
    """Images [count, channels, height, width] in grey or in colour, as the network wants them."""
    if pixels.shape[1] == channels:
        return pixels
    if channels == 3:
        return np.repeat(pixels, 3, axis=1)
    # Number by number: a matrix product rounds by how many images there are, and streamed ones come in batches.
    red, green, blue = (pixels[:, [channel]].astype(np.float32) for channel in range(3))
    weights = np.array(GREY_WEIGHTS, dtype=np.float32)
    return np.rint(red * weights[0] + green * weights[1] + blue * weights[2]).astype(np.uint8)
