"""MetaVIB: learning to learn with variational information bottleneck (Du et al., ECCV 2020), and its ablations.

The classifier of an episode is not a parameter: it is inferred from the meta-train domains and tried on the
meta-test domain. With h_c the mean feature of the meta-train samples of class c,

    q(psi_c | D^s) = g_phi1(h_c)     the classifier of class c: a Gaussian over weight vectors
    p(z | x)       = g_phi2(h(x))    the latent code of an image
    q(z | D^s_c)   = g_phi2(h_c)     the meta prior: what a code of class c should look like

Objective, on the N samples of the meta-test domain:

    1/N sum_n [ - 1/(L_z L_psi) sum log softmax_c(psi_c . z)[y_n] + beta KL[ p(z|x_n) || q(z|D^s_{y_n}) ] ]

with the KL in closed form and summed over the dimensions. `VIB` has the prior N(0, I) in place of the meta
prior (Alemi et al., ICLR 2017), `Baseline` no bottleneck at all: the paper's two ablations.

Prediction infers psi from the class means of ALL source training samples, which the model keeps.

Deviations and gaps closed:
- The sign in front of beta in the paper's objective is a misprint (the bound above it has the right one), and its
  1/(NC) only rescales the loss. The supplement's algorithm box has the KL reversed: the setting `kl_direction`.
- Where the meta-train domains of an episode lack a class, it gets no logit, and meta-test samples of that class
  are left out of the episode's loss. A class that one source domain alone has would never be learnt so: its images
  are lent to the other domains of an episode (`data/lone_classes.py`).
- An episode has classifiers for the classes of its images alone: of 10,000 classes most have none in it.
- `roles = every` is ours: in one pass of the network each domain of the episode is meta-test in turn.
- Features are scaled to a chosen size (one number, measured on the first episode before training), because that of
  backbones differs by a factor of 20 and psi . z grows with its square. The digit network does best as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from metavib.algorithms.inferred import ProbabilisticClassifier
from metavib.core.settings import setting
from metavib.core.shapes import Float, Int
from metavib.nn.backbone import Backbone
from metavib.nn.functional.gaussian import Gaussian, kl_divergence, standard_normal_like


@final
class Baseline(ProbabilisticClassifier):
    """The probabilistic model without a bottleneck (beta = 0)."""

    title = "Baseline"
    paper = "Du et al., ECCV 2020"

    @dataclass(frozen=True)
    class Config(ProbabilisticClassifier.Config):
        """No settings beyond the shared ones."""

    def bottleneck(self, latent: Gaussian, of_means: Gaussian, labels: Int[Tensor, "*roles samples"]) -> None:
        return None


class Bottlenecked(ProbabilisticClassifier):
    """Shared by VIB and MetaVIB: the weight of a divergence."""

    @dataclass(frozen=True)
    class Config(ProbabilisticClassifier.Config):
        """The shared settings, the weight of the bottleneck, and the readings of it."""

        beta: float = setting(0.01, "weight of the bottleneck", minimum=0)
        ramp: int = setting(
            0, "steps in which that weight rises from 0 to beta; 0 begins with beta", minimum=0, absent=0
        )
        kl_dimensions: str = setting(
            "sum",
            "the divergence of two codes is the sum over their dimensions, or the mean",
            choices=("sum", "mean"),
            absent="sum",
        )
        kl_samples: str = setting(
            "every",
            "every sample has the divergence of its code, or each class has one, the mean over its samples: so "
            "the supplement's algorithm box can be read",
            choices=("every", "class"),
            absent="every",
        )

    STACKABLE = ("beta", "ramp")
    beta: Tensor
    ramp: Tensor
    updates: Tensor  # steps that the method has made

    def __init__(self, backbone: Backbone, classes: int, config: Config) -> None:
        super().__init__(backbone, classes, config)
        self.of_dimensions = 1.0 / config.latent_width if config.kl_dimensions == "mean" else 1.0
        self.of_classes = config.kl_samples == "class"
        self._register_stackable(config)
        self.register_buffer("updates", torch.zeros(()), persistent=False)

    def weighted(
        self, divergence: Float[Tensor, "*roles samples"], labels: Int[Tensor, "*roles samples"]
    ) -> Float[Tensor, "*roles samples"]:
        """beta min(1, updates / ramp) times the divergence, over N_c where each class has one."""
        risen = torch.where(self.updates < self.ramp, self.updates / self.ramp.clamp_min(1), 1.0)
        weight = self.beta * risen * self.of_dimensions
        if not self.of_classes:
            return weight * divergence
        alike = (labels.unsqueeze(-1) == labels.unsqueeze(-2)).sum(dim=-1)  # N_c of each sample's class
        return weight * divergence / alike


@final
class VIB(Bottlenecked):
    """The ordinary variational information bottleneck: beta KL[ p(z|x) || N(0, I) ]."""

    title = "VIB"
    paper = "Alemi et al., ICLR 2017"

    @dataclass(frozen=True)
    class Config(Bottlenecked.Config):
        """No settings beyond the shared ones."""

    def bottleneck(
        self, latent: Gaussian, of_means: Gaussian, labels: Int[Tensor, "*roles samples"]
    ) -> Float[Tensor, "*roles samples"]:
        return self.weighted(kl_divergence(latent, standard_normal_like(latent)), labels)


@final
class MetaVIB(Bottlenecked):
    """The bottleneck against the meta prior of the sample's own class: beta KL[ p(z|x) || q(z|D^s_y) ]."""

    title = "MetaVIB"
    paper = "Du et al., ECCV 2020"

    @dataclass(frozen=True)
    class Config(Bottlenecked.Config):
        """The shared settings and the direction of the divergence."""

        kl_direction: str = setting(
            "posterior-to-prior",
            "posterior-to-prior as the bound has it, prior-to-posterior as the supplement's algorithm box",
            choices=("posterior-to-prior", "prior-to-posterior"),
        )

    def __init__(self, backbone: Backbone, classes: int, config: Config) -> None:
        super().__init__(backbone, classes, config)
        self.reversed = config.kl_direction == "prior-to-posterior"

    def bottleneck(
        self, latent: Gaussian, of_means: Gaussian, labels: Int[Tensor, "*roles samples"]
    ) -> Float[Tensor, "*roles samples"]:
        prior = of_means.select(labels)
        divergence = kl_divergence(prior, latent) if self.reversed else kl_divergence(latent, prior)
        return self.weighted(divergence, labels)
