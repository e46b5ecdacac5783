"""Values that follow from the network and the source images, measured before the first step (`fit = true`).

Networks differ: one step of Adam that suits SqueezeNet changes the features of a ResNet-50 three times as much. So
the settings that depend on the network are given in units of what they do, and one probe on a few source images
says what that is here:

- the backbone's learning rate: one step at the full rate, all of whose signs agree, changes the features by
  `CHANGE` times their own spread, as far as that grows in proportion;
- the size of the features that inference networks are given: psi . z at the means varies by `SPREAD` over classes;
- the first variances: draws of psi and z make psi . z vary by `DRAWN`.

The three are plain numbers, one for every network and dataset. No image of the unseen domain takes part.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from metavib.algorithms.base import Algorithm
from metavib.algorithms.inferred import ProbabilisticClassifier
from metavib.core.shapes import Float, Int
from metavib.data.episodes import Episode
from metavib.nn.backbone import Backbone
from metavib.nn.functional.predictive import class_means
from metavib.nn.randomness import key_of, normal

CHANGE = 1.0  # of the features, in units of their spread, by a step at the full rate
SPREAD = 1.0  # of psi . z over classes
DRAWN = 1.0  # deviation of psi . z by the draws
IMAGES = 48  # that the probe looks at
PROBED_CHANGE = 0.05  # at which the change is measured: small enough to be in proportion
ROUNDS = 4  # of each search
LEAST_RATE, FIRST_RATE, HIGHEST_RATE = 1e-7, 1e-5, 1e-2


class Fit(NamedTuple):
    """The measured values. NaN: there was nothing to measure, and the setting holds as it is."""

    backbone_rate: float
    feature_scale: float
    log_variance: float

    def in_words(self) -> str:
        """The line that a run begins with."""
        parts = []
        if not math.isnan(self.backbone_rate):
            parts.append(f"the network learns at {self.backbone_rate:.2g}")
        if not math.isnan(self.feature_scale):
            parts.append(f"features are divided by {self.feature_scale:.3g}")
            parts.append(f"log sigma^2 begins at {self.log_variance:.2f}")
        return "measured on the source images: " + (", ".join(parts) or "nothing that could be fitted")


NOTHING = Fit(math.nan, math.nan, math.nan)


def fit_of(algorithm: Algorithm, episode: Episode, seed: int) -> Fit:
    """Measure all that the algorithm has room for. It stays as it is."""
    images = torch.cat([episode.meta_train.flat_images(), episode.meta_test.flat_images()])
    labels = torch.cat([episode.meta_train.flat_labels(), episode.meta_test.flat_labels()])
    every = max(1, -(-len(images) // IMAGES))
    images, labels = images[::every], labels[::every]
    backbone = algorithm.backbone
    former, backbone.precision = backbone.precision, None  # small changes are lost in bfloat16
    try:
        rate = backbone_rate(backbone, images, labels, algorithm.classes, seed)
        scale = log_variance = math.nan
        if isinstance(algorithm, ProbabilisticClassifier):
            with torch.no_grad():
                features = backbone(images)
                if algorithm.config.centred:  # `begin` has measured the centre
                    features = features - algorithm.feature_centre
            scale, log_variance = first_distributions(algorithm, features, labels)
    finally:
        backbone.precision = former
    return Fit(rate, scale, log_variance)


def backbone_rate(
    backbone: Backbone,
    images: Float[Tensor, "some channels height width"],
    labels: Int[Tensor, "some"],
    classes: int,
    seed: int,
) -> float:
    """The rate at which one step by the signs of the gradient changes the features by `CHANGE` of their spread.

    The gradient is that of a softmax classifier with random first weights on the centred features, which are
    brought to size one: what ERM begins with. NaN where the network does not learn, or tells no images apart.
    """
    parameters = {name: own for name, own in backbone.named_parameters() if own.requires_grad}
    if not parameters:
        return math.nan
    features = backbone(images)
    spread = (features - features.mean(dim=0)).square().mean().sqrt().detach()
    if not spread.isfinite() or spread <= 0:
        return math.nan
    weights = normal(key_of(seed, "fitting"), (features.shape[1], classes)).to(features)
    logits = (features - features.mean(dim=0)) / spread @ weights / features.shape[1] ** 0.5
    loss = nn.functional.cross_entropy(logits, labels)
    slopes = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    signs = {n: s.sign() for n, s in zip(parameters, slopes, strict=True) if s is not None}
    rate = FIRST_RATE
    with torch.no_grad():
        for _ in range(ROUNDS):
            moved = {name: parameters[name] - rate * sign for name, sign in signs.items()}
            change = (functional_call(backbone, moved, (images,)) - features).square().mean().sqrt() / spread
            if not change.isfinite() or change <= 0:
                return math.nan
            rate *= min(100.0, max(0.01, PROBED_CHANGE / float(change)))
    return min(HIGHEST_RATE, max(LEAST_RATE, rate * CHANGE / PROBED_CHANGE))


@torch.no_grad()
def first_distributions(
    algorithm: ProbabilisticClassifier, features: Float[Tensor, "some features"], labels: Int[Tensor, "some"]
) -> tuple[float, float]:
    """Return the divisor of the features, and log sigma^2 of the first psi and z.

    psi . z at the means grows with the square of the features' size. With a variance v of both, its draws have the
    variance w v^2 + (|psi|^2 + |z|^2) v, w being the latent width: that is DRAWN^2.
    """
    present = labels.unique()
    numbers = torch.searchsorted(present, labels)
    scale = float(features.square().mean().sqrt())
    if not (math.isfinite(scale) and scale > 0 and len(present) > 1):
        return math.nan, math.nan
    learnt = 1.0 if algorithm.log_scale is None else float(algorithm.log_scale.exp())
    means = class_means(features, numbers, len(present)).features
    for last in [False] * ROUNDS + [True]:
        psi, z = algorithm.infer_classifier.mean(means / scale), algorithm.infer_latent.mean(features / scale)
        if last:
            break
        logits = learnt * z @ psi.mT
        spread = float((logits - logits.mean(dim=1, keepdim=True)).square().mean().sqrt())
        if not (math.isfinite(spread) and spread > 0):
            return math.nan, math.nan
        scale *= min(10.0, max(0.1, (spread / SPREAD) ** 0.5))
    sizes = float(psi.square().sum(dim=1).mean() + z.square().sum(dim=1).mean())
    width, wanted = algorithm.config.latent_width, (DRAWN / learnt) ** 2
    variance = (
        2 * wanted / (sizes + math.sqrt(sizes**2 + 4 * width * wanted))
    )  # the root, without cancellation
    return scale, math.log(variance)


@torch.no_grad()
def apply(fit: Fit, algorithm: Algorithm) -> None:
    """Give the algorithm the measured size and variances; the rate is the optimizer's."""
    if not isinstance(algorithm, ProbabilisticClassifier) or math.isnan(fit.feature_scale):
        return
    algorithm.feature_scale.fill_(fit.feature_scale)
    for network in (algorithm.infer_classifier, algorithm.infer_latent):
        network.output.bias[network.hidden_2.out_features :] = max(-10.0, min(10.0, fit.log_variance))
