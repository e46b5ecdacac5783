"""MTAE: domain generalization with multi-task autoencoders (Ghifary et al., ICCV 2015).

An image is turned into what it would be in each of the domains: one encoder h for all, a decoder D_j for each
source domain j. Features from which an object can be drawn in every domain hold what the domains have in
common. Then a classifier w is trained on them, and the encoder with it. With x_i an image of domain i, x_i->j
the same object in domain j (where it is not known: an image there of the same class; x_i->i is x_i itself) and
m_j the mean image of domain j in the episode, from which its images are s^2 away on average, two terms:

    classification   CE[ w(h(x_i)) ]                                   w; after phase one h too
    reconstruction   mean_ij || m_j + D_j(h(x_i)) - x_i->j ||^2 / s^2  D; in phase one h too

over all pairs of domains of an episode. In the first `phase_one` of the steps the features learn to reconstruct
alone, as the paper's do before they are given to a classifier; in the rest they follow the classifier, and what
the reconstruction says to them has the weight `reconstruction_weight`. 0 makes these the paper's two stages; a
`phase_one` of 0 trains both at once; with both 0 it is ERM.

Which object is the same: episodes are drawn by the same numbers in all domains (`PAIRED`), so that Rotated
MNIST by the paper's protocol gives the same digit at every angle. Where the image in the same place is of
another class, the next one of the same class in that domain takes its place; where the domain has none in the
episode, the pair is left out. So PACS gives an image of the same class, as the paper pairs photographs.

Deviations. The paper's encoder is one layer of sigmoids on pixels or fixed features; here it is the backbone,
which begins phase one with the weights that it has. Its ReLUs are why decoders add to the mean image and begin
near zero: decoders that begin anywhere first make all features smaller, whatever they show, and after 24 steps
on digits three quarters of them were dead; so it is less than a third. Decoders have two layers and restore
images at 32 x 32 at most; rows of features as `mlp` standardises them. Not the denoising variant, which drops
pixels of the input. An episode holds D of the source domains (3), not all. In phase one the classifier learns
on features that it does not move. The defaults are ours: a short phase one, and a low weight after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from metavib.algorithms.base import Noise, SoftmaxClassifier
from metavib.core.settings import Settings, setting
from metavib.core.shapes import Bool, Float, Int
from metavib.data.episodes import Episode
from metavib.nn.backbone import Backbone
from metavib.nn.two_layers import DomainTwoLayers, restored_size, to_restore

SMALLEST_SPREAD = 1e-6  # where all images of a domain are the same there is nothing to divide by
FIRST_OUTPUT = 0.01  # how large the decoders' output layer begins, as a share of torch's way


@final
class MTAE(SoftmaxClassifier):
    """A softmax classifier on features from which each object can be drawn as it is in every source domain."""

    title = "MTAE"
    paper = "Ghifary et al., ICCV 2015"

    @dataclass(frozen=True)
    class Config(Settings):
        """The two phases, and the decoders."""

        phase_one: float = setting(
            0.3,
            "share of the steps in which the features learn by reconstruction alone",
            minimum=0,
            maximum=1,
        )
        reconstruction_weight: float = setting(
            0.5, "weight of the reconstruction for the features after phase one", minimum=0
        )
        decoder_width: int = setting(256, "width of the hidden layer of the decoders", minimum=1)

    STACKABLE = ("reconstruction_weight",)
    PER_DOMAIN = True
    WHOLE_IMAGES = True
    PAIRED = True
    APART = ("decoders.",)
    TRAINING_ONLY = ("decoders.",)
    reconstruction_weight: Tensor
    progress: Tensor

    def __init__(self, backbone: Backbone, classes: int, config: Config, *, domains: int) -> None:
        super().__init__(backbone, classes)
        self.phase_one = config.phase_one
        self.decoders = DomainTwoLayers(  # D_j
            domains, backbone.feature_size, config.decoder_width, restored_size(backbone)
        )
        with torch.no_grad():
            self.decoders.output_weight.mul_(FIRST_OUTPUT)
            self.decoders.output_bias.mul_(FIRST_OUTPUT)
        self._register_stackable(config)
        self.register_buffer("progress", torch.zeros(()), persistent=False)

    @classmethod
    def needs_backbone(cls, config: Settings) -> str:
        return "trains the backbone to restore images"

    def losses(self, episode: Episode, noise: Noise) -> dict[str, Float[Tensor, ""]]:
        samples = episode.all_domains()
        features = self.backbone(samples.flat_images(), noise.get("dropout"))
        pixels = to_restore(self.backbone, samples.flat_images()).unflatten(0, samples.labels.shape)
        places, known = same_class(samples.labels)
        wanted = pixels.take_along_dim(places.flatten(1).unsqueeze(-1), dim=1)  # [to, from x samples, pixels]
        first = self.progress < self.phase_one
        by_classes = torch.where(first, 0.0, 1.0).to(features)
        by_pixels = torch.where(first, 1.0, self.reconstruction_weight).to(features)
        drawn = self.decoders(samples.domains, moved_at(features, by_pixels))
        mean = pixels.mean(dim=1, keepdim=True)  # m_j
        spread = (pixels - mean).square().mean().clamp_min(SMALLEST_SPREAD)  # s^2 of a pixel
        errors = (mean + drawn - wanted).square().mean(dim=-1) / spread
        counted = known.flatten(1).to(errors)
        logits = self.classifier(moved_at(features, by_classes))
        return {
            "classification": nn.functional.cross_entropy(logits, samples.flat_labels()),
            "reconstruction": (errors * counted).sum() / counted.sum(),
        }


def moved_at(features: Tensor, weight: Float[Tensor, ""]) -> Tensor:
    """Features of equal value, whose gradient is multiplied by this weight."""
    return weight * features + (1.0 - weight) * features.detach()


def same_class(
    labels: Int[Tensor, "domains samples"],
) -> tuple[Int[Tensor, "to domains samples"], Bool[Tensor, "to domains samples"]]:
    """For each domain, the place in it of an image of the same class as each image, and whether it has one.

    The same place, where that holds the same class, otherwise the next one, the first following the last.
    """
    places = torch.arange(labels.shape[1], device=labels.device)
    # Of all places m as seen from n: the highest for m = n, then falling to one.
    nearness = len(places) - (places - places.unsqueeze(-1)) % len(places)
    alike = labels[:, None, None, :] == labels[None, :, :, None]  # [to, from, n, m]
    best = (alike * nearness).max(dim=-1)
    return best.indices, best.values > 0
