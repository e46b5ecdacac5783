"""MASF: domain generalisation via model-agnostic learning of semantic features (Dou et al., NeurIPS 2019).

After a step on the meta-train domains, features should keep what is semantic: classes should relate to each other
in the same way in every domain, and samples of a class lie together whatever their domain. With psi the backbone,
theta the classifier, phi a small metric network and L_task the mean cross-entropy on the meta-train domains,

    (psi', theta') = (psi, theta) - alpha grad L_task(psi, theta)
    z_c^k          = mean of h(x; psi') over the samples of class c in domain k
    s_c^k          = softmax(logits of z_c^k by theta' / tau)               the soft confusion of class c
    L_global       = mean over pairs (i meta-train, j meta-test) and classes c of
                     1/2 ( KL[s_c^i || s_c^j] + KL[s_c^j || s_c^i] )
    L_local        = triplets or pairs of embeddings e = M_phi(h(x; psi')) of all domains (`metric`):
                     mean over (a, p) of max(0, d(a,p)^2 - d(a,n)^2 + xi), n the semi-hard negative, or
                     mean of d^2 over pairs of one class + mean of max(0, xi - d)^2 over pairs of two

Objectives, each for its own parameters:

    psi, theta    L_task + beta_1 L_global + beta_2 L_local      through the inner step, to second order
    phi           L_local

The semi-hard negative of (a, p) is the nearest sample of another class that is farther from a than p is; where
there is none, the farthest (Schroff et al., CVPR 2015).

Deviations:
- Episodes and the outer step (Adam) are those of all methods here; the metric network learns at the same rate.
- Where a domain of a pair lacks a class, the class is left out of the pair.
- The metric network has no biases, and the inner gradient is not clipped by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from metavib.algorithms.base import Noise, SoftmaxClassifier, dropout_by_role
from metavib.core.settings import Settings, setting
from metavib.core.shapes import Bool, Float, Int
from metavib.data.episodes import Episode
from metavib.nn.backbone import Backbone
from metavib.nn.functional.adaptation import Parameters, adapted, stopped
from metavib.nn.functional.predictive import class_means, masked_mean, renumbered


@final
class MASF(SoftmaxClassifier):
    """A softmax classifier with features that relate classes alike, and gather each class, over domains."""

    title = "MASF"
    paper = "Dou et al., NeurIPS 2019"

    @dataclass(frozen=True)
    class Config(Settings):
        """The inner step, the two alignments and the metric network, as in the paper's experiments."""

        inner_rate: float = setting(1e-5, "alpha: the rate of the inner step", minimum=0)
        global_weight: float = setting(1.0, "beta_1: weight of the global alignment", minimum=0)
        local_weight: float = setting(0.005, "beta_2: weight of the local metric loss", minimum=0)
        temperature: float = setting(2.0, "tau: of the soft confusion", above=0)
        metric: str = setting("triplet", "the local loss", choices=("triplet", "contrastive"))
        margin: float = setting(10.0, "xi: of the local loss", above=0)
        metric_hidden: int = setting(1024, "width of the metric network's hidden layer", minimum=1)
        metric_width: int = setting(256, "width of the embeddings", minimum=1)

    STACKABLE = ("inner_rate", "global_weight", "local_weight", "temperature", "margin")
    APART = ("metric_network.",)
    TRAINING_ONLY = ("metric_network.",)
    inner_rate: Tensor  # alpha
    global_weight: Tensor  # beta_1
    local_weight: Tensor  # beta_2
    temperature: Tensor  # tau
    margin: Tensor  # xi

    def __init__(self, backbone: Backbone, classes: int, config: Config) -> None:
        super().__init__(backbone, classes, second_order=True)
        # M_phi. Distances do not see the bias of a unit that is on for all samples: its gradient would be rounding
        # alone, of which Adam makes whole steps.
        self.metric_network = nn.Sequential(
            nn.Linear(backbone.feature_size, config.metric_hidden, bias=False),
            nn.ReLU(),
            nn.Linear(config.metric_hidden, config.metric_width, bias=False),
        )
        self.local = semi_hard_triplets if config.metric == "triplet" else contrasted_pairs
        self._register_stackable(config)

    def losses(self, episode: Episode, noise: Noise) -> dict[str, Float[Tensor, ""]]:
        """Cross-entropy on meta-train; after a step on it, both alignments over all domains."""
        train, test = episode
        of_train, _ = dropout_by_role(noise, episode)

        def task_loss(parameters: Parameters) -> Float[Tensor, ""]:
            return self.cross_entropy(parameters, train, of_train)

        moved, classification = adapted(task_loss, self.network(), self.inner_rate)
        labels = torch.cat([train.labels, test.labels])
        images = torch.cat([train.flat_images(), test.flat_images()])
        features = self.features(moved, images, noise.get("dropout"))
        alignment = self._global_alignment(moved, features, labels, len(train.labels))
        metric: Parameters = dict(self.metric_network.named_parameters())
        return {
            "classification": classification,
            "global_alignment": self.global_weight * alignment,
            "local_metric": self.local_weight * self._local_loss(stopped(metric), features, labels),
            "metric_network": self._local_loss(metric, features.detach(), labels),
        }

    def _global_alignment(
        self,
        parameters: Parameters,
        features: Float[Tensor, "batch features"],
        labels: Int[Tensor, "domains samples"],
        meta_train_domains: int,
    ) -> Float[Tensor, ""]:
        """L_global: the meta-train domains come first."""
        classes = min(self.classes, labels.numel())
        if classes < self.classes:  # rows of s for the classes of the episode alone, not the square of all
            labels = renumbered(labels.flatten()).view(labels.shape)
        means, present = torch.vmap(lambda own, of: class_means(own, of, classes))(
            features.unflatten(0, labels.shape), labels
        )
        logits = self.logits(parameters, means.flatten(0, 1)).unflatten(0, present.shape)
        confusion = torch.log_softmax(logits / self.temperature, dim=-1)  # log s_c^k
        first, second = confusion[:meta_train_domains, None], confusion[None, meta_train_domains:]
        both = present[:meta_train_domains, None] & present[None, meta_train_domains:]
        return masked_mean(symmetrised_kl(first, second).flatten(), both.flatten())

    def _local_loss(
        self,
        metric: Parameters,
        features: Float[Tensor, "batch features"],
        labels: Int[Tensor, "domains samples"],
    ) -> Float[Tensor, ""]:
        """L_local by these parameters of the metric network."""
        embeddings = functional_call(self.metric_network, metric, (features,))
        return self.local(embeddings, labels.flatten(), self.margin)


def symmetrised_kl(
    first: Float[Tensor, "*#batch classes"], second: Float[Tensor, "*#batch classes"]
) -> Float[Tensor, "*batch"]:
    """1/2 (KL[p || q] + KL[q || p]) = 1/2 sum_c (p_c - q_c) (log p_c - log q_c), from log p and log q."""
    return 0.5 * ((first.exp() - second.exp()) * (first - second)).sum(dim=-1)


def contrasted_pairs(
    embeddings: Float[Tensor, "batch dim"], labels: Int[Tensor, "batch"], margin: Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """Mean of d^2 over pairs of one class, plus mean of max(0, xi - d)^2 over pairs of two."""
    squared, alike, other = _pairs(embeddings, labels)
    distance = squared.clamp_min(1e-12).sqrt()  # the root has no derivative at zero
    pulled = masked_mean(squared.flatten(), alike.flatten())
    pushed = masked_mean((margin - distance).relu().square().flatten(), other.flatten())
    return pulled + pushed


def semi_hard_triplets(
    embeddings: Float[Tensor, "batch dim"], labels: Int[Tensor, "batch"], margin: Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """Mean over pairs (a, p) of one class of max(0, d(a,p)^2 - d(a,n)^2 + xi), with n the semi-hard negative."""
    squared, alike, other = _pairs(embeddings, labels)
    ordered, order = squared.detach().sort(dim=1)  # from each anchor outward
    other_ordered = other.gather(1, order)
    # From the far end inward, the smallest distance so far to another class: for p, that of the next one outward.
    outward = ordered.masked_fill(~other_ordered, math.inf).flip(1)
    nearest, place = (values.flip(1) for values in outward.cummin(dim=1))
    place = ordered.shape[1] - 1 - place
    farthest = ordered.masked_fill(~other_ordered, -math.inf).argmax(dim=1, keepdim=True)
    negative = order.gather(1, torch.where(nearest.isinf(), farthest, place))
    excess = squared.gather(1, order) - squared.gather(1, negative) + margin
    counted = alike.gather(1, order) & other.any(dim=1, keepdim=True)
    return masked_mean(excess.relu().flatten(), counted.flatten())


def _pairs(
    embeddings: Float[Tensor, "batch dim"], labels: Int[Tensor, "batch"]
) -> tuple[Float[Tensor, "batch batch"], Bool[Tensor, "batch batch"], Bool[Tensor, "batch batch"]]:
    """Squared distances of all pairs, which are of two samples of one class, and which of two classes."""
    centred = embeddings - embeddings.mean(dim=0)  # the same distances, with less rounding
    squares = centred.square().sum(dim=1)
    squared = squares.unsqueeze(1) + squares - 2 * centred @ centred.mT
    same = labels.unsqueeze(1) == labels
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    return squared.clamp_min(0.0), same & ~itself, ~same
