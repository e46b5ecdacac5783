"""Feature-Critic networks for heterogeneous domain generalisation (Li et al., ICML 2019), with shared classes.

A critic h_omega looks at features and says how well they will carry over: an auxiliary loss for the feature
extractor, learned so that a step along it lowers the loss on held-out domains. With theta the backbone, phi the
classifier, L_train and L_test the mean cross-entropy on the meta-train and meta-test domains of an episode,

    h_omega   = mean over the meta-train images of softplus(MLP_omega(h(x)))     the paper's set embedding
    theta_old = theta - alpha grad_theta L_train(theta, phi)
    theta_new = theta_old - alpha beta grad_theta h_omega(theta)

Objectives, each for its own parameters:

    theta, phi    L_train(theta, phi) + beta h_omega(theta)         phi does not enter the second term
    omega         tanh( L_test(theta_new, phi) - L_test(theta_old, phi) )

The second is differentiated by omega through theta_new, by mixed second derivatives; in every term the parameters
that it is not for are stopped, so that the gradient of the sum is the gradient of each.

Deviations:
- The paper begins from a network that was trained without a critic. Here the critic learns from the first step on,
  and what it says moves the backbone after a share of the steps, `warm_up`; before, it is only logged.
- Episodes and the outer step (Adam) are those of all methods here; the critic learns at the same rate.
- beta, the weight of the auxiliary loss, is ours; the paper's is one. At zero it is ERM on the meta-train domains.
- Of the paper's two critics, the set embedding; the other takes the flattened covariance of the features.
- The paper's own problem, where each domain has its own classes, is left out: domains share their classes here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp

from metavib.algorithms.base import Noise, SoftmaxClassifier, dropout_by_role
from metavib.core.settings import Settings, setting
from metavib.core.shapes import Float
from metavib.data.episodes import Episode
from metavib.nn.backbone import Backbone
from metavib.nn.functional.adaptation import Parameters, moved, stopped


@final
class FeatureCritic(SoftmaxClassifier):
    """A softmax classifier with an auxiliary loss that is learned to lower the loss on held-out domains."""

    title = "Feature-Critic"
    paper = "Li et al., ICML 2019"

    @dataclass(frozen=True)
    class Config(Settings):
        """The inner step, the critic's size and the weight of what it says."""

        inner_rate: float = setting(1e-3, "alpha: the rate of the inner steps", minimum=0)
        auxiliary_weight: float = setting(1.0, "beta: weight of the auxiliary loss", minimum=0)
        warm_up: float = setting(
            0.5, "share of the steps in which the auxiliary loss moves nothing yet", minimum=0, maximum=1
        )
        critic_width: int = setting(128, "width of the critic's hidden layer", minimum=1)

    STACKABLE = ("inner_rate", "auxiliary_weight")
    APART = ("critic.",)
    TRAINING_ONLY = ("critic.",)
    inner_rate: Tensor  # alpha
    auxiliary_weight: Tensor  # beta
    progress: Tensor

    def __init__(self, backbone: Backbone, classes: int, config: Config) -> None:
        super().__init__(backbone, classes, second_order=True)
        self.critic = nn.Sequential(  # MLP_omega
            nn.Linear(backbone.feature_size, config.critic_width),
            nn.ReLU(),
            nn.Linear(config.critic_width, 1),
        )
        self._register_stackable(config)
        self.warm_up = config.warm_up
        self.register_buffer("progress", torch.zeros(()), persistent=False)

    def auxiliary(self, critic: Parameters, features: Float[Tensor, "batch features"]) -> Float[Tensor, ""]:
        """beta h_omega of the features, by these parameters of the critic."""
        scores = functional_call(self.critic, critic, (features,))
        return self.auxiliary_weight * nn.functional.softplus(scores).mean()

    @classmethod
    def needs_backbone(cls, config: Settings) -> str:
        return "learns a loss of the backbone alone"

    def losses(self, episode: Episode, noise: Noise) -> dict[str, Float[Tensor, ""]]:
        """Cross-entropy on meta-train, the critic's loss on it, and whether that helped on meta-test."""
        network = self.network()
        critic: Parameters = dict(self.critic.named_parameters())
        of_train, of_test = dropout_by_role(noise, episode)
        images, labels = episode.meta_train.flat_images(), episode.meta_train.flat_labels()

        features = self.features(network, images, of_train)
        classification = nn.functional.cross_entropy(self.logits(network, features), labels)
        auxiliary = self.auxiliary(stopped(critic), features)

        frozen = stopped(network)  # the critic's own objective moves nothing else

        def task_loss(features: Float[Tensor, "batch features"]) -> Float[Tensor, ""]:
            return nn.functional.cross_entropy(self.logits(frozen, features), labels)

        backbone = {name: value for name, value in frozen.items() if name.startswith("backbone.")}
        found, pulled_back, *_ = vjp(lambda own: self.features(own, images, of_train), backbone)
        (by_task,) = pulled_back(grad(task_loss)(found))
        (by_critic,) = pulled_back(grad(lambda given: self.auxiliary(critic, given))(found))
        old = moved(backbone, by_task, self.inner_rate)
        new = moved(old, by_critic, self.inner_rate)
        before, after = (self.cross_entropy(frozen | own, episode.meta_test, of_test) for own in (old, new))
        return {
            "classification": classification,
            "auxiliary": torch.where(self.progress < self.warm_up, auxiliary.detach(), auxiliary),
            "meta_test": torch.tanh(after - before),
        }
