"""CrossGrad: generalising across domains via cross-gradient training (Shankar et al., ICLR 2018).

A label network and a domain network are each trained on images that are perturbed along the other's gradient. The
label network so meets images of domains that do not exist, with the class unchanged; the domain network learns
not to mind changes of the class, which keeps its own gradient from changing the class. With J_l and J_d the
cross-entropies of labels and domains, theta_l and theta_d the parameters of the two networks, and gradients of
each image's own loss by its pixels,

    X_d = X + epsilon_l grad_X J_d(X, D; theta_d)
    X_l = X + epsilon_d grad_X J_l(X, Y; theta_l)

Four terms, means over the images, each of which moves what is named; the perturbed images count as constants:

    classification             (1 - alpha_l) J_l(X, Y)    theta_l
    perturbed_classification   alpha_l J_l(X_d, Y)        theta_l
    domains                    (1 - alpha_d) J_d(X, D)    theta_d
    perturbed_domains          alpha_d J_d(X_l, D)        theta_d

With alpha_l = 0, or with epsilon_l = 0, theta_l is ERM's.

Both alphas are .5, as in the authors' code; the paper takes them equal, and chooses from .1 to .9 by validation.

Deviations:
- The domain network is a second backbone, which begins as a copy of the first, with a linear classifier of all
  source domains; those that an episode lacks are wrong answers in it. The authors' networks have two more layers.
- The authors' code takes the gradient of the mean over a batch, clips it to .1 and goes 10 times as far. Here each
  image moves along the gradient of its own loss, as in the paper's derivation, so that epsilon does not depend on
  the size of the batch, and nothing is clipped. For the authors' batches of 32 their step is an epsilon of .3.
- Features that are not images are perturbed in units of their deviation, so that no unit matters.
- Dropout has the same noise in all passes of an image.

Cost: both networks pass each image twice, forward and backward. The domain network is needed in training alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from metavib.algorithms.base import Noise, SoftmaxClassifier
from metavib.core.settings import Settings, setting
from metavib.core.shapes import Float, Images
from metavib.data.episodes import Episode
from metavib.nn.backbone import Backbone
from metavib.nn.functional.adaptation import Parameters

Loss = Callable[[Tensor], Tensor]  # of images


@final
class CrossGrad(SoftmaxClassifier):
    """A softmax classifier trained on images that are perturbed along the gradient of a domain classifier."""

    title = "CrossGrad"
    paper = "Shankar et al., ICLR 2018"

    @dataclass(frozen=True)
    class Config(Settings):
        """How far images are moved, and how much the moved ones count."""

        label_step: float = setting(
            1.0, "epsilon_l: how far the label network's images move along the domain loss", minimum=0
        )
        domain_step: float = setting(
            1.0, "epsilon_d: how far the domain network's images move along the label loss", minimum=0
        )
        label_share: float = setting(
            0.5, "alpha_l: weight of moved images for the label network", minimum=0, maximum=1
        )
        domain_share: float = setting(
            0.5, "alpha_d: weight of moved images for the domain network", minimum=0, maximum=1
        )

    STACKABLE = ("label_step", "domain_step", "label_share", "domain_share")
    PER_DOMAIN = True
    SPLITS_DOMAINS = False  # the domain of an image is an answer: a lent one would be a wrong answer
    WHOLE_IMAGES = True
    BACKBONES = ("backbone.", "domain_backbone.")
    APART = ("domain_",)
    TRAINING_ONLY = ("domain_",)
    label_step: Tensor
    domain_step: Tensor
    label_share: Tensor
    domain_share: Tensor

    def __init__(self, backbone: Backbone, classes: int, config: Config, *, domains: int) -> None:
        super().__init__(backbone, classes)
        self.domain_backbone = copy.deepcopy(backbone)
        self.domain_classifier = nn.Linear(backbone.feature_size, domains)
        self._register_stackable(config)

    def losses(self, episode: Episode, noise: Noise) -> dict[str, Float[Tensor, ""]]:
        samples = episode.all_domains()
        images, labels = samples.flat_images(), samples.flat_labels()
        domains = samples.domains.unsqueeze(-1).expand_as(samples.labels).flatten()
        dropout = noise.get("dropout")
        domain_network: Parameters = dict(self.domain_backbone.named_parameters())

        def label_loss(images: Tensor) -> Float[Tensor, ""]:  # J_l
            features = self.backbone(images, dropout)
            return nn.functional.cross_entropy(self.classifier(features), labels)

        def domain_loss(images: Tensor) -> Float[Tensor, ""]:  # J_d
            # By the parameters of the one and the constants of the other, which were fitted to the data.
            features = functional_call(self.backbone, domain_network, (images, dropout))
            return nn.functional.cross_entropy(self.domain_classifier(features), domains)

        scale = self.backbone.input_scale()
        along_labels, of_labels = perturbed(label_loss, images, self.domain_step, scale)  # X_l
        along_domains, of_domains = perturbed(domain_loss, images, self.label_step, scale)  # X_d
        return {
            "classification": (1.0 - self.label_share) * of_labels,
            "perturbed_classification": self.label_share * label_loss(along_domains),
            "domains": (1.0 - self.domain_share) * of_domains,
            "perturbed_domains": self.domain_share * domain_loss(along_labels),
        }


def perturbed(
    loss: Loss,
    images: Images,
    step: float | Float[Tensor, ""],
    scale: float | Tensor,
) -> tuple[Images, Float[Tensor, ""]]:
    """x + step grad_x loss(x) of each image's own loss, as a constant, and the mean loss.

    `scale` is the deviation of the pixels: with s = x / scale it is s + step grad_s loss that is taken.
    """
    slope, value = grad_and_value(loss)(images)
    of_its_own = slope.detach() * len(images)  # the loss is the mean over the images
    return images + (step * of_its_own * scale * scale).to(images.dtype), value
