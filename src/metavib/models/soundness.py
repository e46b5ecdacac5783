"""Whether a model can answer at all: tried once when it is loaded, on three made-up images.

One NaN among the weights, or weights so large that sums overflow, make every probability NaN, and the most
probable of NaNs is the first class. Weights that are all zero give every image the same answer. Neither is one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from metavib.algorithms.base import Algorithm
from metavib.core.shapes import UInt8
from metavib.data.transforms import Preprocessing
from metavib.models.measuring import shared_noise
from metavib.nn.randomness import bits, key_of

MOST_VALUES = 2**31  # weights of a network: eight GiB, a hundred times what the largest one here has
MOST_DRAWN = 2**28  # numbers that are drawn, or computed from draws, for one image


def fault_of_weights(stored: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str | None:
    """The fault in the values of a file of weights, in words; None where there is none."""
    for name, tensor in stored.items():
        own = expected[name].dtype
        if tensor.dtype != own and not (tensor.is_floating_point() and own.is_floating_point):
            return f"{name} holds {_kind(tensor.dtype)} where {_kind(own)} belong"
        if not tensor.isfinite().all():
            return f"{name} has values that are not finite"
    return None


def fault_of_size(algorithm: Algorithm) -> str | None:
    """Whether the network, or its draws, are larger than anything that can be used; it need have no memory yet."""
    values = sum(tensor.numel() for tensor in algorithm.state_dict().values())
    if values > MOST_VALUES:
        return f"its network would have {values:,} weights"
    shapes = algorithm.prediction_noise_shapes(1).values()
    drawn = max(sum(map(math.prod, shapes)), algorithm.classes * math.prod(shape[0] for shape in shapes))
    return f"an answer would take {drawn:,} numbers" if drawn > MOST_DRAWN else None


@torch.no_grad()
def fault_of_answers(algorithm: Algorithm, preprocessing: Preprocessing, device: torch.device) -> str | None:
    """The fault in the answers of a loaded model, in words; None where there is none."""
    embedded = algorithm.embed(preprocessing(probe_pixels(preprocessing).to(device)))
    at_mean = algorithm.predictive(embedded, None).log_probabilities[0, 0]
    sampled = algorithm.predictive(embedded, shared_noise(algorithm, 0, device)).probabilities()
    if not (at_mean.exp().isfinite().all() and sampled.isfinite().all()):
        return "its answers are not finite: its weights are too large, or zero where something is divided by them"
    if algorithm.classes > 1 and (at_mean == at_mean[0]).all():
        return "it gives every image the same answer: the weights are zero, or the training broke down"
    return None


def probe_pixels(preprocessing: Preprocessing) -> UInt8[Tensor, "3 channels size size"]:
    """Black, noise, and black beside white."""
    shape = (preprocessing.channels, preprocessing.size, preprocessing.size)
    images = torch.zeros(3, *shape, dtype=torch.uint8)
    images[1] = bits(key_of(0, "probe"), shape).bitwise_and(255).to(torch.uint8)
    images[2, :, :, preprocessing.size // 2 :] = 255
    return images


def _kind(dtype: torch.dtype) -> str:
    return "floats" if dtype.is_floating_point else str(dtype).removeprefix("torch.")
