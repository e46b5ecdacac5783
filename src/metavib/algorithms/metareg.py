"""MetaReg: a regulariser learned so that training on one domain serves another (Balaji et al., NeurIPS 2018).

The regulariser is a weighted L1 norm of the classifier, R_phi(theta) = sum_i phi_i |theta_i|. Beside the final
network (features psi, classifier theta) each source domain has a task network: a classifier theta_a of its own on
the same features. For a random pair of domains a and b, l steps are unrolled from theta_a,

    theta' <- theta' - alpha grad [ L_a(psi, theta') + R_phi(theta') ],

and phi descends on L_b(psi, theta'), differentiated through all of the steps. Then the final classifier is trained
on all domains with L + R_phi. Four terms, each of which moves only what is named:

    classification   L(psi, theta)         psi and theta
    regulariser      R_phi(theta)          theta
    tasks            mean_a L_a(theta_a)   the task networks
    meta_test        L_b(theta'(phi))      phi

b is the meta-test domain of an episode, a its first meta-train domain: a random pair, as the episode is random.
Only linear classifiers are differentiated twice, so that a step costs little more than one of ERM.

Deviations. The paper trains twice: a first network with its task networks gives phi, then a fresh one is trained
with it. Here both happen in one training, in which psi and theta minimise L from the beginning: in the first
`phase_one` of the steps phi is learned and not applied, in the rest it is applied and frozen (but for what is
left of Adam's momentum); with `phase_one = 0` it is learned and applied all along. So theta is not fresh when R
sets in, and psi follows the final classifier, never the task networks. All unrolled steps see the same images.
Learned by Adam, phi would move as far in a step as any weight does, however small its gradient: phi is
`penalty_rate` times what Adam moves. A negative phi_i makes its weight grow, as in the paper's formula; where the
regulariser is applied such a weight is left alone, because the growth would have no end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from metavib.algorithms.base import Noise, SoftmaxClassifier
from metavib.core.settings import Settings, setting
from metavib.core.shapes import Float, Int
from metavib.data.episodes import Episode
from metavib.nn.backbone import Backbone
from metavib.nn.domain_classifiers import DomainClassifiers
from metavib.nn.functional.adaptation import Parameters, adapted


@final
class MetaReg(SoftmaxClassifier):
    """A softmax classifier under a weighted L1 norm whose weights are learned across pairs of domains."""

    title = "MetaReg"
    paper = "Balaji et al., NeurIPS 2018"

    @dataclass(frozen=True)
    class Config(Settings):
        """The regulariser, and how it is learned."""

        inner_rate: float = setting(0.001, "alpha: learning rate of the unrolled steps", above=0)
        inner_steps: int = setting(3, "l: unrolled steps on domain a before domain b judges", minimum=1)
        initial_penalty: float = setting(0.0, "phi before training, of every weight", minimum=0)
        penalty_rate: float = setting(
            0.01, "learning rate of phi, as a share of learning_rate; 0 keeps its first value", minimum=0
        )
        phase_one: float = setting(
            0.5,
            "share of the steps in which phi is learned and not yet applied; 0 learns and applies it all along",
            minimum=0,
            maximum=1,
        )

    STACKABLE = ("inner_rate", "initial_penalty", "penalty_rate")
    PER_DOMAIN = True
    APART = ("tasks.", "learned_penalty.")
    TRAINING_ONLY = ("tasks.", "learned_penalty.")
    inner_rate: Tensor
    initial_penalty: Tensor
    penalty_rate: Tensor
    progress: Tensor

    def __init__(self, backbone: Backbone, classes: int, config: Config, *, domains: int) -> None:
        super().__init__(backbone, classes)
        self.config = config
        self.tasks = DomainClassifiers(domains, backbone.feature_size, classes)  # theta_a
        # phi = initial_penalty + penalty_rate * these
        self.learned_penalty = nn.ParameterDict(
            {name: torch.zeros_like(own) for name, own in self.classifier.named_parameters()}
        )
        self._register_stackable(config)
        self.register_buffer("progress", torch.zeros(()), persistent=False)

    def losses(self, episode: Episode, noise: Noise) -> dict[str, Float[Tensor, ""]]:
        samples = episode.all_domains()
        labels = samples.flat_labels()
        features = self.backbone(samples.flat_images(), noise.get("dropout"))
        fixed = features.detach().unflatten(0, samples.labels.shape)  # [domains, samples, features]
        tasks = self.tasks.of(samples.domains)
        trying, applying = self._phases()
        learned = self.penalties()
        applied = {name: own.detach().clamp_min(0.0) for name, own in learned.items()}
        start = {"weight": tasks.weight[0].detach(), "bias": tasks.bias[0].detach()}
        after = unrolled(
            start, learned, fixed[0], samples.labels[0], self.inner_rate, self.config.inner_steps
        )
        judged = task_loss(after, fixed[-1], samples.labels[-1])
        return {
            "classification": nn.functional.cross_entropy(self.classifier(features), labels),
            "regulariser": applying * weighted_l1(applied, dict(self.classifier.named_parameters())),
            "tasks": nn.functional.cross_entropy(tasks.logits(fixed).flatten(0, 1), labels),
            "meta_test": trying * judged + (1.0 - trying) * judged.detach(),
        }

    def penalties(self) -> Parameters:
        """phi, one weight for each parameter of a classifier."""
        return {
            name: self.initial_penalty + self.penalty_rate * own for name, own in self.learned_penalty.items()
        }

    def _phases(self) -> tuple[Tensor, Tensor]:
        """1 or 0 each: whether phi is learned now, and whether it is applied."""
        applying = (self.progress >= self.config.phase_one).to(self.progress)
        trying = 1.0 - applying if self.config.phase_one > 0 else torch.ones_like(applying)
        return trying, applying


def weighted_l1(penalties: Parameters, parameters: Parameters) -> Float[Tensor, ""]:
    """R_phi(theta) = sum_i phi_i |theta_i|."""
    return torch.stack([(penalties[name] * own.abs()).sum() for name, own in parameters.items()]).sum()


def task_loss(
    classifier: Parameters, features: Float[Tensor, "samples features"], labels: Int[Tensor, "samples"]
) -> Float[Tensor, ""]:
    """L: cross-entropy of a linear classifier on features."""
    logits = nn.functional.linear(features, classifier["weight"], classifier["bias"])
    return nn.functional.cross_entropy(logits, labels)


def unrolled(
    classifier: Parameters,
    penalties: Parameters,
    features: Float[Tensor, "samples features"],
    labels: Int[Tensor, "samples"],
    rate: float | Float[Tensor, ""],
    steps: int,
) -> Parameters:
    """So many steps of gradient descent on L + R_phi; the result can be differentiated by phi."""

    def objective(parameters: Parameters) -> Float[Tensor, ""]:
        return task_loss(parameters, features, labels) + weighted_l1(penalties, parameters)

    for _ in range(steps):
        classifier, _ = adapted(objective, classifier, rate)
    return classifier
