"""Reptile (Nichol et al., "On first-order meta-learning algorithms", 2018), each inner step on another domain.

From theta, k steps of gradient descent are made, the i-th on domain i of the episode:

    theta_0 = theta,    theta_i = theta_{i-1} - alpha grad L_i(theta_{i-1}),    L_i the cross-entropy on domain i

and theta moves toward their result: the outer optimizer (Adam) is given, in place of a gradient,

    d = (theta - theta_k) / (alpha k)   =   the mean of the k inner gradients.

The paper divides by alpha alone; the further k makes d as large as a gradient, whatever the number of steps, and
only clipping sees it, because Adam does not. With one step, or with alpha = 0, d is an ordinary gradient: that of
ERM on one domain, or on all of them. Nothing is differentiated twice.

Deviations: the paper's tasks are few-shot problems, and all inner steps of an iteration are on one of them. As a
method for domain generalization, which is what MetaVIB's tables have it for, the inner steps go through the
domains of the episode, the meta-test domain last; which domain comes when is a matter of the episode's random
draw. Where there are more steps than domains, the same images come again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.func import grad_and_value

from metavib.algorithms.base import Noise, SoftmaxClassifier
from metavib.core.settings import Settings, setting
from metavib.core.shapes import Float
from metavib.data.episodes import Episode
from metavib.nn.backbone import Backbone
from metavib.nn.functional.adaptation import Parameters, stopped


@final
class Reptile(SoftmaxClassifier):
    """A softmax classifier moved toward where inner steps on the domains, one after the other, lead."""

    title = "Reptile"
    paper = "Nichol et al., 2018"

    @dataclass(frozen=True)
    class Config(Settings):
        """The inner steps."""

        inner_rate: float = setting(0.001, "alpha: learning rate of the inner steps", minimum=0)
        inner_steps: int = setting(
            0, "k: inner steps, each on the next domain of the episode; 0 for one on each", minimum=0
        )

    STACKABLE = ("inner_rate",)
    inner_rate: Tensor

    def __init__(self, backbone: Backbone, classes: int, config: Config) -> None:
        super().__init__(backbone, classes)
        self.config = config
        self._register_stackable(config)

    def losses(self, episode: Episode, noise: Noise) -> dict[str, Float[Tensor, ""]]:
        """The cross-entropies that the inner steps meet, and 1/2 |d|^2, whose gradient here is d."""
        network = self.network()
        direction, losses = self._inner_steps(stopped(network), episode, noise)
        # theta - stopped(theta) is zero, and its gradient one.
        along = [((own - own.detach()) * direction[name]).sum() for name, own in network.items()]
        size = [own.square().sum() for own in direction.values()]
        return {
            "classification": losses.mean(),
            "movement": 0.5 * torch.stack(size).sum() + torch.stack(along).sum(),
        }

    def _inner_steps(
        self, parameters: Parameters, episode: Episode, noise: Noise
    ) -> tuple[Parameters, Float[Tensor, "steps"]]:
        """The mean of the inner gradients, and the loss before each step."""
        samples = episode.all_domains()
        dropout = noise.get("dropout")
        by_domain = None if dropout is None else dropout.unflatten(0, samples.labels.shape)
        domains = len(samples.labels)
        steps = self.config.inner_steps or domains
        mean = {name: torch.zeros_like(value) for name, value in parameters.items()}
        losses: list[Tensor] = []
        for step in range(steps):
            own = step % domains

            def objective(parameters: Parameters, own: int = own) -> Float[Tensor, ""]:
                features = self.features(
                    parameters, samples.images[own], None if by_domain is None else by_domain[own]
                )
                return nn.functional.cross_entropy(self.logits(parameters, features), samples.labels[own])

            gradient, loss = grad_and_value(objective)(parameters)
            parameters = {
                name: value - self.inner_rate * gradient[name] for name, value in parameters.items()
            }
            mean = {name: value + gradient[name] / steps for name, value in mean.items()}
            losses.append(loss)
        return mean, torch.stack(losses)
