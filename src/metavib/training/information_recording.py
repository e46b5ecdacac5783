"""The information plane through training: what the layers of the latent inference network know of image and label.

It is measured on source validation images at the weights of the moment, and changes nothing. How bits are
estimated stands in `nn/functional/information.py`; the noise is decided here. The hidden layers draw nothing
and have none. The code has, but in hundreds of dimensions it mostly tells all images apart, which leaves nothing
to see. So every layer is looked at through Gaussian noise, whose variance in each unit is a fixed share of the
variance of the whole layer; the code has its own noise beside. All layers are then seen equally sharply, however
wide they are, and a hidden one that only grows or shrinks as a whole keeps its information. Noise that follows the
activations: Chelombiej et al., "Adaptive estimators show information compression in deep neural networks", ICLR
2019. How much of I(T;Y) is the estimator's own doing, the same with shuffled labels says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from metavib.algorithms.base import Algorithm
from metavib.core.device import widest_float
from metavib.core.shapes import Float
from metavib.data.opening import LabelledRows
from metavib.models.measuring import embed
from metavib.nn.functional.gaussian import Gaussian
from metavib.nn.functional.information import binned, distances_between, from_distances, symbol_entropy
from metavib.nn.inference import InferenceNetwork
from metavib.nn.randomness import key_of, permutation

LAYERS = ("hidden_1", "hidden_2", "code")
LARGEST_SAMPLE = 256  # images: more cost time, fewer make shuffled labels seem known
NOISE = 0.3  # share of a layer's variance: two images are 1 / NOISE nats apart on average
BINS = 30


@dataclass(frozen=True)
class InformationProbe:
    """A latent inference network and the images that it is watched on."""

    algorithm: Algorithm
    network: InferenceNetwork
    images: LabelledRows
    shuffle: Tensor  # an order of the labels that has nothing to do with the images

    @torch.no_grad()
    def measure(self) -> dict[str, Any] | None:
        """A record at the current weights, in bits; None where it is not finite. Waits for the device once."""
        embedded = embed(self.algorithm, self.images.batches())
        first, second, code = self.network.layers(embedded.features)
        device = embedded.labels.device
        place = device if widest_float(device) == torch.float64 else torch.device("cpu")
        labels, first, second = embedded.labels.to(place), first.to(place), second.to(place)
        code = Gaussian(code.mean.to(place), code.log_variance.to(place))
        seen = (
            through_noise(first),
            through_noise(second),
            through_noise(code.mean, code.log_variance.double().exp()),
        )
        numbers = [symbol_entropy(labels)]
        for layer in seen:
            distances = distances_between(layer)
            by_chance = from_distances(distances, labels[self.shuffle.to(place)]).with_label
            numbers += [
                *from_distances(distances, labels),
                by_chance,
                *binned(layer.mean, labels, BINS),
            ]
        label_entropy, *of_layers = torch.stack(numbers).tolist()
        if not all(math.isfinite(number) for number in of_layers):
            return None
        names = ("pairwise_input", "pairwise_label", "pairwise_shuffled", "binned_input", "binned_label")
        record: dict[str, Any] = {"images": len(labels), "label_entropy": label_entropy}
        for position, layer_name in enumerate(LAYERS):
            own = of_layers[position * len(names) : (position + 1) * len(names)]
            record[layer_name] = dict(zip(names, own, strict=True))
        return record


def probe_of(algorithm: Algorithm, validation: LabelledRows, seed: int) -> InformationProbe | str:
    """A probe of an algorithm on some of its source validation images, or why it cannot be probed."""
    network = getattr(algorithm, "infer_latent", None)
    if not isinstance(network, InferenceNetwork):
        return f"{type(algorithm).__name__} has no bottleneck, so its information plane is not recorded."
    if len(validation) == 0:
        return "without source validation images no information plane is recorded; raise validation_share."
    device = validation.rows.device
    chosen = permutation(key_of(seed, "information", "images"), len(validation))[:LARGEST_SAMPLE]
    chosen = chosen.sort().values.to(device)
    images = replace(validation, rows=validation.rows[chosen], labels=validation.labels[chosen])
    shuffle = permutation(key_of(seed, "information", "shuffle"), len(images)).to(device)
    return InformationProbe(algorithm, network, images, shuffle)


def recording_steps(records: int, steps: int) -> frozenset[int]:
    """Before the first step, and so many times after, evenly spread to the last one; never for 0 records."""
    if records == 0:
        return frozenset()
    return frozenset(number * steps // records for number in range(records + 1))


def through_noise(
    values: Float[Tensor, "images units"], own_variance: Float[Tensor, "images units"] | float = 0.0
) -> Gaussian:
    """A layer with noise of a fixed share of its variance over the images, added to what it has of its own."""
    values = values.double()
    noise = NOISE * values.var(dim=0, correction=0).sum()
    variance = (own_variance + noise).clamp_min(torch.finfo(torch.float32).tiny)
    return Gaussian(values, variance.log().expand_as(values))
