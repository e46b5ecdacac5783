"""Episodic training, Epi-FCR (Li et al., "Episodic training for domain generalization", ICCV 2019).

A network of features h and classifier w is trained on all domains alike (the paper's AGG, which is ERM), and made
robust by partners that are badly suited to the images at hand. Each source domain j has a network of its own,
features h_j and classifier w_j, trained on that domain alone. With CE the cross-entropy on the images of domain i,
j another domain than i, and brackets < > around what is frozen, five terms, each of which moves what is named:

    classification        CE[ w(h(x_i)) ]                 h and w
    partners              CE[ w_i(h_i(x_i)) ]             h_i and w_i
    episodic_features     lambda_1 CE[ <w_j>(h(x_i)) ]    h: it must serve the classifier of another domain
    episodic_classifier   lambda_2 CE[ w(<h_j>(x_i)) ]    w: it must cope with the features of another domain
    random_classifier     lambda_3 CE[ <w_r>(h(x_i)) ]    h: it must serve a classifier drawn at random and kept

all of them means over the images of the episode. With all lambdas zero h and w are ERM's. The default lambdas are
those of the authors for PACS.

Deviations: the partner of domain i is the next domain of the episode, which is as random as the episode. Partners
begin as copies of the first h; those of domains that an episode lacks move by Adam's momentum alone. The authors
train for some hundred iterations before the episodic terms set in: here for the share `warm_up` of the steps.

Cost: the partners see every image twice, once without gradient, and a model keeps as many further networks as
there are source domains. They are needed in training alone.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from metavib.algorithms.base import Noise, SoftmaxClassifier
from metavib.core.settings import Settings, setting
from metavib.core.shapes import Float
from metavib.data.episodes import Episode, Samples
from metavib.nn.backbone import Backbone
from metavib.nn.domain_classifiers import Classifiers, DomainClassifiers
from metavib.nn.functional.adaptation import Parameters, stopped


@final
class EpiFCR(SoftmaxClassifier):
    """A softmax classifier whose two halves are each trained against frozen halves of other domains' networks."""

    title = "Epi-FCR"
    paper = "Li et al., ICCV 2019"

    @dataclass(frozen=True)
    class Config(Settings):
        """The weights of the episodic terms."""

        feature_weight: float = setting(
            2.0, "lambda_1: features under another domain's classifier", minimum=0
        )
        classifier_weight: float = setting(
            0.05, "lambda_2: classifier on another domain's features", minimum=0
        )
        random_weight: float = setting(0.1, "lambda_3: features under a random classifier", minimum=0)
        warm_up: float = setting(
            0.15, "share of the steps before the episodic terms set in", minimum=0, maximum=1
        )

    STACKABLE = ("feature_weight", "classifier_weight", "random_weight")
    PER_DOMAIN = True
    BACKBONES = ("backbone.", "partner_backbones.")
    APART = ("partner_",)
    TRAINING_ONLY = ("partner_",)
    feature_weight: Tensor
    classifier_weight: Tensor
    random_weight: Tensor
    progress: Tensor
    random_classifier: Tensor

    def __init__(self, backbone: Backbone, classes: int, config: Config, *, domains: int) -> None:
        super().__init__(backbone, classes)
        self.config = config
        self.partner_backbones = nn.ModuleList(copy.deepcopy(backbone) for _ in range(domains))  # h_j
        self.partner_classifiers = DomainClassifiers(domains, backbone.feature_size, classes)  # w_j
        drawn = nn.Linear(backbone.feature_size, classes).weight.detach().clone()
        self.register_buffer("random_classifier", drawn, persistent=False)  # w_r; the seed gives it again
        self._register_stackable(config)
        self.register_buffer("progress", torch.zeros(()), persistent=False)

    @classmethod
    def needs_backbone(cls, config: Settings) -> str:
        return "trains features against the networks of other domains, which all have the same ones here"

    def losses(self, episode: Episode, noise: Noise) -> dict[str, Float[Tensor, ""]]:
        samples = episode.all_domains()
        labels = samples.flat_labels()
        dropout = noise.get("dropout")
        features = self.backbone(samples.flat_images(), dropout)
        by_domain = features.unflatten(0, samples.labels.shape)
        native, foreign = self._partner_features(samples, dropout)
        partners = self.partner_classifiers.of(samples.domains)
        of_next = Classifiers(*(values.roll(-1, dims=0) for values in partners.stopped()))
        episodic = (self.progress >= self.config.warm_up).to(self.progress)

        def cross_entropy(logits: Tensor) -> Float[Tensor, ""]:
            return nn.functional.cross_entropy(logits.view(-1, self.classes), labels)

        return {
            "classification": cross_entropy(self.classifier(features)),
            "partners": cross_entropy(partners.logits(native)),
            "episodic_features": episodic * self.feature_weight * cross_entropy(of_next.logits(by_domain)),
            "episodic_classifier": episodic
            * self.classifier_weight
            * cross_entropy(self.classifier(foreign)),
            "random_classifier": episodic
            * self.random_weight
            * cross_entropy(nn.functional.linear(features, self.random_classifier)),
        }

    def _partner_features(
        self, samples: Samples, dropout: Tensor | None
    ) -> tuple[Float[Tensor, "domains samples features"], Float[Tensor, "domains samples features"]]:
        """Each domain's images by its own partner, and by that of the next domain, frozen."""
        everyone = [dict(partner.named_parameters()) for partner in self.partner_backbones]
        # Which partners take part is known on the device alone.
        chosen = {
            name: torch.stack([own[name] for own in everyone]).index_select(0, samples.domains)
            for name in everyone[0]
        }
        masks = None if dropout is None else dropout.unflatten(0, samples.labels.shape)
        native, foreign = [], []
        for place in range(len(samples.domains)):
            partner = {name: values[place] for name, values in chosen.items()}
            native.append(self._features(partner, samples, masks, place))
            foreign.append(self._features(stopped(partner), samples, masks, place - 1))
        return torch.stack(native), torch.stack(foreign).roll(-1, dims=0)

    def _features(
        self, partner: Parameters, samples: Samples, masks: Tensor | None, domain: int
    ) -> Float[Tensor, "samples features"]:
        images = samples.images[domain], None if masks is None else masks[domain]
        return functional_call(self.backbone, partner, images)
