"""Domain separation networks, DSN (Bousmalis et al., NeurIPS 2016), with the source domains as its domains.

What an image is, is told apart from what its domain adds. A shared encoder h gives what all domains have in
common, a private encoder e_d for each domain d what is its own, and a decoder D restores the image from both.
The classifier w sees the shared code alone, from which a network g must not be able to tell the domain. With x
an image of domain d and brackets < > around what is stopped, five terms, each of which moves what is named:

    classification   CE[ w(h(x)) ]                                           h and w
    reconstruction   alpha SI[ x, D(h(x) + e_d(x)) ]                         h, e and D
    difference       beta mean_d || 1/n sum_i c_i p_i^T ||_F^2               h and e
    similarity       - gamma CE[ <g>(h(x)), d ]                              h: by reversed gradients
    domains          CE[ g(<h(x)>), d ]                                      g

SI, the scale-invariant error of an image with k pixels, is 1/k || x - y ||^2 - 1/k^2 ( sum (x - y) )^2: an
image that is brighter all over is no worse. c_i and p_i are the shared and the private code of the n images of
a domain, less their mean and scaled to length one: the difference lies in [0, 1], and is 0 where the two say
nothing of one another. The shared code is h itself, so that with alpha, beta and gamma zero it is ERM.

Deviations. The paper has one source with labels and one target without; here every source domain has labels and
a private encoder, and the unseen one has none: it is not needed. Of the paper's two similarity losses this is
the better one, domain-adversarial training. The paper's difference is not divided by n^2, so our beta is in
other units; alpha is of the paper's size, gamma a fifth of it: at 0.25 the features outran the domain network.
The similarity sets in after the share `warm_up` of the steps, in the paper after 10,000 iterations. Encoders of
domains and decoder have two fully connected layers each and see the image at 32 x 32 at most: they are there
for what they do to h. Rows of features are restored as `mlp` standardises them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from metavib.algorithms.base import Noise, SoftmaxClassifier
from metavib.core.settings import Settings, setting
from metavib.core.shapes import Float
from metavib.data.episodes import Episode
from metavib.nn.backbone import Backbone
from metavib.nn.two_layers import DomainTwoLayers, TwoLayers, restored_size, to_restore

SHORTEST = 1e-6  # squared length of a code below which it is not made longer


@final
class DSN(SoftmaxClassifier):
    """A softmax classifier on features that leave to private encoders what belongs to one domain alone."""

    title = "DSN"
    paper = "Bousmalis et al., NeurIPS 2016"

    @dataclass(frozen=True)
    class Config(Settings):
        """The weights of what is asked of shared and private codes."""

        reconstruction_weight: float = setting(
            0.1, "alpha: restoring the image from shared and private code", minimum=0
        )
        difference_weight: float = setting(
            1.0, "beta: private codes that say nothing of the shared ones", minimum=0
        )
        similarity_weight: float = setting(
            0.05, "gamma: shared codes that do not show their domain", minimum=0
        )
        warm_up: float = setting(
            0.2, "share of the steps before the similarity sets in", minimum=0, maximum=1
        )
        auxiliary_width: int = setting(
            256, "width of the hidden layer of private encoders, decoder and domain network", minimum=1
        )

    STACKABLE = ("reconstruction_weight", "difference_weight", "similarity_weight")
    PER_DOMAIN = True
    SPLITS_DOMAINS = False  # the domain of an image is an answer: a lent one would be a wrong answer
    WHOLE_IMAGES = True
    APART = ("domain_network.",)
    TRAINING_ONLY = ("private_encoders.", "decoder.", "domain_network.")
    reconstruction_weight: Tensor  # alpha
    difference_weight: Tensor  # beta
    similarity_weight: Tensor  # gamma
    progress: Tensor

    def __init__(self, backbone: Backbone, classes: int, config: Config, *, domains: int) -> None:
        super().__init__(backbone, classes)
        code, width, pixels = backbone.feature_size, config.auxiliary_width, restored_size(backbone)
        self.warm_up = config.warm_up
        self.private_encoders = DomainTwoLayers(domains, pixels, width, code)  # e_d
        self.decoder = TwoLayers(code, width, pixels)  # D
        self.domain_network = TwoLayers(code, width, domains)  # g
        self._register_stackable(config)
        self.register_buffer("progress", torch.zeros(()), persistent=False)

    @classmethod
    def needs_backbone(cls, config: Settings) -> str:
        return "trains the backbone to leave to each domain what is its own"

    def losses(self, episode: Episode, noise: Noise) -> dict[str, Float[Tensor, ""]]:
        samples = episode.all_domains()
        images, domains = samples.flat_images(), samples.domains.unsqueeze(-1).expand_as(samples.labels)
        pixels = to_restore(self.backbone, images)
        features = self.backbone(images, noise.get("dropout"))
        shared = features.unflatten(0, samples.labels.shape)
        private = self.private_encoders(samples.domains, pixels.unflatten(0, samples.labels.shape))
        restored = self.decoder((shared + private).flatten(0, 1))
        confusing = (self.progress >= self.warm_up).to(self.progress)

        def told_apart(logits: Float[Tensor, "batch domains"]) -> Float[Tensor, ""]:
            return nn.functional.cross_entropy(logits, domains.flatten())

        return {
            "classification": nn.functional.cross_entropy(self.classifier(features), samples.flat_labels()),
            "reconstruction": self.reconstruction_weight * scale_invariant_error(restored, pixels).mean(),
            "difference": self.difference_weight * difference(shared, private).mean(),
            "similarity": -confusing
            * self.similarity_weight
            * told_apart(self.domain_network.frozen(features)),
            "domains": told_apart(self.domain_network(features.detach())),
        }


def scale_invariant_error(
    restored: Float[Tensor, "*batch pixels"], original: Float[Tensor, "*batch pixels"]
) -> Float[Tensor, "*batch"]:
    """1/k || x - y ||^2 - 1/k^2 ( sum (x - y) )^2 of each image: the mean error does not count."""
    error = restored - original
    return (error - error.mean(dim=-1, keepdim=True)).square().mean(dim=-1)


def difference(
    shared: Float[Tensor, "*domains samples dims"], private: Float[Tensor, "*domains samples others"]
) -> Float[Tensor, "*domains"]:
    """|| 1/n sum_i c_i p_i^T ||_F^2, of codes less their mean and of length one; of each domain by itself."""
    product = _of_length_one(shared).mT @ _of_length_one(private) / shared.shape[-2]
    return product.square().sum(dim=(-2, -1))


def _of_length_one(codes: Tensor) -> Tensor:
    centred = codes - codes.mean(dim=-2, keepdim=True)
    # Smooth at zero, where codes of all images alike would have no direction.
    return centred * (centred.square().sum(dim=-1, keepdim=True) + SHORTEST).rsqrt()
