"""MLDG: learning to generalise, meta-learning for domain generalisation (Li et al., AAAI 2018).

The domains of an episode are divided into meta-train and meta-test. A step that helps the first should help the
second too. With theta all parameters, backbone and classifier alike,

    F(theta)  = mean cross-entropy on the meta-train domains
    theta'    = theta - alpha grad F(theta)
    G(theta') = mean cross-entropy on the meta-test domain

Objective: F(theta) + beta G(theta'), with theta' a function of theta: its gradient has second derivatives of F.

Deviations:
- An episode holds D of the source domains (3), one of them meta-test, as for all methods here; the paper divides
  all source domains anew at each step.
- The outer step is Adam's, as for all methods here; the paper's is plain gradient descent at the rate gamma.
- `second_order = false` is ours: grad F counts as a constant, which spares the second derivatives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from metavib.algorithms.base import Noise, SoftmaxClassifier, dropout_by_role
from metavib.core.settings import Settings, setting
from metavib.core.shapes import Float
from metavib.data.episodes import Episode
from metavib.nn.backbone import Backbone
from metavib.nn.functional.adaptation import Parameters, adapted


@final
class MLDG(SoftmaxClassifier):
    """A softmax classifier whose steps on some domains are to help on another: F(theta) + beta G(theta')."""

    title = "MLDG"
    paper = "Li et al., AAAI 2018"

    @dataclass(frozen=True)
    class Config(Settings):
        """The inner step and the weight of what follows it, as in the paper's experiments on PACS."""

        inner_rate: float = setting(5e-4, "alpha: the rate of the inner step", minimum=0)
        meta_test_weight: float = setting(
            1.0, "beta: weight of the meta-test loss after the inner step", minimum=0
        )
        second_order: bool = setting(True, "differentiate through the inner step; false: to first order")

    STACKABLE = ("inner_rate", "meta_test_weight")
    inner_rate: Tensor  # alpha
    meta_test_weight: Tensor  # beta

    def __init__(self, backbone: Backbone, classes: int, config: Config) -> None:
        super().__init__(backbone, classes, second_order=config.second_order)
        self.second_order = config.second_order
        self._register_stackable(config)

    def losses(self, episode: Episode, noise: Noise) -> dict[str, Float[Tensor, ""]]:
        """Cross-entropy on meta-train, and on meta-test after a step on meta-train."""
        of_train, of_test = dropout_by_role(noise, episode)

        def meta_train_loss(parameters: Parameters) -> Float[Tensor, ""]:  # F
            return self.cross_entropy(parameters, episode.meta_train, of_train)

        moved, classification = adapted(
            meta_train_loss, self.network(), self.inner_rate, second_order=self.second_order
        )
        meta_test_loss = self.cross_entropy(moved, episode.meta_test, of_test)  # G
        return {"classification": classification, "meta_test": self.meta_test_weight * meta_test_loss}
