"""Arrays as sources: images and features that a caller has in memory already."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from metavib.core.errors import UserError
from metavib.core.shapes import Float, Int, Num
from metavib.data.episodes import Source
from metavib.data.opening import LabelledRows, Sources
from metavib.data.store.storage import ImageStore
from metavib.data.transforms import GREY_WEIGHTS, Preprocessing
from metavib.nn.randomness import key_of, permutation

CHANNELS = (1, 3)  # grey and colour
RESIZED_AT_A_TIME = 256


def features_as_pixels(
    features: Num[np.ndarray, "count features"],
) -> Float[np.ndarray, "count features 1 1"]:
    """Rows of features as images of one pixel with as many channels."""
    return np.array(features, dtype=np.float64, order="C")[:, :, None, None]


def images_as_pixels(
    images: Num[np.ndarray, "count ..."], size: int, channels: int, interpolation: str = "bilinear"
) -> Num[np.ndarray, "count channels size size"]:
    """Images of any layout as a network wants them: squashed to size x size, grey or in colour.

    Bytes stay bytes, and numbers in [0, 1] become float32.
    """
    pixels = _checked_range(channels_first(images))
    parts = np.array_split(pixels, max(1, len(pixels) // RESIZED_AT_A_TIME))
    return np.concatenate([_fitted(part, size, channels, interpolation) for part in parts])


def channels_first(images: Num[np.ndarray, "count ..."]) -> Num[np.ndarray, "count channels height width"]:
    """Images [n, h, w], [n, c, h, w] or [n, h, w, c] with their channels second."""
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4 and images.shape[1] in CHANNELS:
        return images
    if images.ndim == 4 and images.shape[3] in CHANNELS:
        return images.transpose(0, 3, 1, 2)
    raise UserError(
        f"X has the shape {images.shape}: it takes features [n, d], or images [n, h, w], [n, c, h, w] or "
        "[n, h, w, c] with 1 or 3 channels."
    )


def _checked_range(pixels: np.ndarray) -> np.ndarray:
    """uint8, or float32 in [0, 1]: what a pixel's value means must not be guessed."""
    if pixels.dtype == np.uint8:
        return pixels
    low, high = pixels.min(), pixels.max()
    if np.issubdtype(pixels.dtype, np.integer):
        if low < 0 or high > 255:
            raise UserError(f"whole numbers in images take 0 to 255, and these lie in {low} to {high}.")
        return pixels.astype(np.uint8)
    if low < 0 or high > 1:
        raise UserError(
            f"floats in images take 0 to 1, and these lie in {low:g} to {high:g}: scale them, or give uint8."
        )
    return pixels.astype(np.float32)


def _fitted(pixels: np.ndarray, size: int, channels: int, interpolation: str) -> np.ndarray:
    values = pixels.astype(np.float32)
    if pixels.shape[1] > channels:
        values = np.tensordot(values, np.array(GREY_WEIGHTS, dtype=np.float32), axes=(1, 0))[:, None]
    if pixels.shape[2:] != (size, size):
        # With antialiasing, as image files are read.
        mode = interpolation if interpolation == "bicubic" else "bilinear"
        resized = nn.functional.interpolate(
            torch.from_numpy(np.ascontiguousarray(values)), (size, size), mode=mode, antialias=True
        )
        values = resized.numpy()
        if mode == "bicubic":  # which overshoots
            values = values.clip(0, 255 if pixels.dtype == np.uint8 else 1)
    if values.shape[1] < channels:
        values = np.repeat(values, channels, axis=1)
    return values if pixels.dtype != np.uint8 else np.rint(values).clip(0, 255).astype(np.uint8)


def random_domains(labels: Int[np.ndarray, "count"], domains: int, seed: int) -> Int[np.ndarray, "count"]:
    """A domain for every sample where none are known: each class is dealt out evenly, in an order of the seed."""
    shuffled = permutation(key_of(seed, "domains"), len(labels)).numpy()
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    dealt = np.empty(len(labels), dtype=np.int64)
    dealt[by_class] = np.arange(len(labels)) % domains
    return dealt


def sources_of(
    pixels: Num[np.ndarray, "count channels height width"],
    labels: Int[np.ndarray, "count"],
    domains: Int[np.ndarray, "count"],
    classes: int,
    preprocessing: Preprocessing,
    device: torch.device,
) -> Sources:
    """Samples in memory as the source domains of a run; all are trained on, and none is kept for validation."""
    store = ImageStore([pixels], device)
    by_domain = np.argsort(domains, kind="stable")
    rows = np.split(by_domain, np.cumsum(np.bincount(domains))[:-1])
    train = Source(store, preprocessing, rows, labels, classes)
    none = torch.zeros(0, dtype=torch.int64, device=device)
    return Sources(train, LabelledRows(store, preprocessing, none, none), frozenset(), {})
