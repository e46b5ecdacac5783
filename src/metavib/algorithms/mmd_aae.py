"""MMD-AAE: domain generalization with adversarial feature learning (Li et al., CVPR 2018).

An autoencoder, encoder Q and decoder P, whose codes are to be distributed alike in all source domains, and as a
prior that no domain has chosen: then, it is hoped, in an unseen domain too. A classifier w judges the codes.
With h(x) the features, q = Q(h(x)) their codes, D a discriminator, s(t) = log(1 + exp t), and brackets < >
around what is stopped, five terms, each of which moves what is named:

    classification   CE[ w(q) ]                                        h, Q and w
    reconstruction   lambda_0 || P(q) - <h> ||^2 / || <h> ||^2         h, Q and P
    discrepancy      lambda_1 1/K^2 sum_ij MMD^2(q of domain i, j)     h and Q
    prior            lambda_2 s( - <D>(q) )                            h and Q: codes are to pass as draws
    discriminator    1/2 [ s( - D(p) ) + s( D(<q>) ) ]                 D, with p drawn from the prior

MMD is the maximum mean discrepancy (Gretton et al., JMLR 2012) in a mixture of RBF kernels, K the number of
domains in the episode, and the prior a Laplace distribution of variance one in each dimension, which makes codes
sparse. With lambda_0, lambda_1 and lambda_2 zero it is ERM with one more linear layer.

Deviations. The paper encodes pixels or features that are fixed; here h is the backbone, which is trained as
well, and what is restored are its features as they are at the moment: were the target not stopped, features of
zero would restore themselves best. Its error counts as a share of their mean square. The paper's widths of the
kernels are constants; here they go with the mean squared distance between the codes of the episode, because a
fixed width sees nothing in codes that are much larger or smaller. Codes go the usual way of raising D
(Goodfellow et al. 2014), which does not fade where D is sure. Discriminator and encoder move at the same time,
not in turn. The weights are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from metavib.algorithms.base import Noise, Shapes, SoftmaxClassifier
from metavib.core.settings import Settings, setting
from metavib.core.shapes import Float, Images
from metavib.data.episodes import Episode
from metavib.nn.backbone import Backbone
from metavib.nn.two_layers import TwoLayers

SQUARED_WIDTHS = (0.25, 1.0, 4.0)  # of the kernels, in mean squared distances


@final
class MMDAAE(SoftmaxClassifier):
    """A softmax classifier on the codes of an autoencoder that are alike in all domains and in a prior."""

    title = "MMD-AAE"
    paper = "Li et al., CVPR 2018"

    @dataclass(frozen=True)
    class Config(Settings):
        """The autoencoder, and the weights of what is asked of its codes."""

        reconstruction_weight: float = setting(
            0.1, "lambda_0: restoring the features from the codes", minimum=0
        )
        discrepancy_weight: float = setting(1.0, "lambda_1: codes alike in all domains", minimum=0)
        prior_weight: float = setting(0.01, "lambda_2: codes as if drawn from the prior", minimum=0)
        code_width: int = setting(256, "dimensions of a code", minimum=1)
        auxiliary_width: int = setting(
            256, "width of the hidden layer of decoder and discriminator", minimum=1
        )

    STACKABLE = ("reconstruction_weight", "discrepancy_weight", "prior_weight")
    APART = ("discriminator.",)
    TRAINING_ONLY = ("decoder.", "discriminator.")
    reconstruction_weight: Tensor  # lambda_0
    discrepancy_weight: Tensor  # lambda_1
    prior_weight: Tensor  # lambda_2

    def __init__(self, backbone: Backbone, classes: int, config: Config) -> None:
        super().__init__(backbone, classes, classifier_inputs=config.code_width)
        self.code_width = config.code_width
        self.encoder = nn.Linear(backbone.feature_size, config.code_width)  # Q
        self.decoder = TwoLayers(config.code_width, config.auxiliary_width, backbone.feature_size)  # P
        self.discriminator = TwoLayers(config.code_width, config.auxiliary_width, 1)  # D
        self._register_stackable(config)

    def losses(self, episode: Episode, noise: Noise) -> dict[str, Float[Tensor, ""]]:
        samples = episode.all_domains()
        features = self.backbone(samples.flat_images(), noise.get("dropout"))
        codes = self.encoder(features)
        discrepancies = pairwise_mmd(codes.unflatten(0, samples.labels.shape), SQUARED_WIDTHS)
        drawn = self.discriminator(laplace(noise["prior"]).to(codes))
        softplus = nn.functional.softplus
        return {
            "classification": nn.functional.cross_entropy(self.classifier(codes), samples.flat_labels()),
            "reconstruction": self.reconstruction_weight
            * relative_error(self.decoder(codes), features.detach()),
            "discrepancy": self.discrepancy_weight * discrepancies.mean(),
            "prior": self.prior_weight * softplus(-self.discriminator.frozen(codes)).mean(),
            "discriminator": 0.5
            * (softplus(-drawn).mean() + softplus(self.discriminator(codes.detach())).mean()),
        }

    def noise_shapes(self, meta_train_images: int, meta_test_images: int) -> Shapes:
        shapes = super().noise_shapes(meta_train_images, meta_test_images)
        return shapes | {"prior": (meta_train_images + meta_test_images, self.code_width)}

    def embed(self, images: Images) -> Float[Tensor, "batch code"]:
        """The codes that the encoder gives."""
        return self.encoder(self.backbone(images))


def laplace(normal: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Draws of a Laplace distribution of mean zero and variance one, from standard normal ones of the same ranks.

    The inverse of its distribution function at that of the normal: - sign(n) log erfc(|n| / sqrt 2) / sqrt 2.
    """
    return -(0.5**0.5) * normal.sign() * torch.erfc(normal.abs() * 0.5**0.5).log()


def relative_error(
    restored: Float[Tensor, "batch features"], features: Float[Tensor, "batch features"]
) -> Float[Tensor, ""]:
    """|| restored - features ||^2 / || features ||^2 over the whole batch."""
    size = features.square().mean().clamp_min(torch.finfo(features.dtype).tiny)
    return (restored - features).square().mean() / size


def squared_distances(
    first: Float[Tensor, "n dims"], second: Float[Tensor, "m dims"]
) -> Float[Tensor, "n m"]:
    """|| x_i - y_j ||^2, never negative."""
    sizes = first.square().sum(dim=-1).unsqueeze(-1) + second.square().sum(dim=-1)
    return (sizes - 2.0 * first @ second.mT).clamp_min(0.0)


def rbf_mixture(
    distances: Float[Tensor, "n m"], squared_widths: Sequence[float], unit: float | Float[Tensor, ""] = 1.0
) -> Float[Tensor, "n m"]:
    """Mean over sigma^2 of exp( - || x - y ||^2 / (2 sigma^2 unit) ): a mixture of RBF kernels."""
    scaled = -0.5 * distances / unit
    return torch.stack([torch.exp(scaled / width) for width in squared_widths]).mean(dim=0)


def pairwise_mmd(
    codes: Float[Tensor, "domains samples dims"],
    squared_widths: Sequence[float],
    unit: float | Float[Tensor, ""] | None = None,
) -> Float[Tensor, "domains domains"]:
    """MMD^2 of every pair of domains: mean k(x, x') + mean k(y, y') - 2 mean k(x, y), all pairs counted.

    It is the squared distance of the domains' means in the kernel's space, so zero where two domains have the
    same samples and never below. The widths are in units of the mean squared distance between any two of the
    codes, which counts as a constant, or of what is given as the unit.
    """
    domains, samples, _ = codes.shape
    flat = codes.flatten(0, 1)
    distances = squared_distances(flat, flat)
    if unit is None:
        # Codes that are all the same have no distance to divide by.
        unit = distances.detach().mean().clamp_min(torch.finfo(codes.dtype).tiny)
    kernel = rbf_mixture(distances, squared_widths, unit)
    means = kernel.view(domains, samples, domains, samples).mean(dim=(1, 3))
    within = means.diagonal()
    return within.unsqueeze(-1) + within - 2.0 * means
