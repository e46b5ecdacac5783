"""A linear classifier for each source domain, for methods that let domains be tried against one another."""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from metavib.core.shapes import Float, Int


class Classifiers(NamedTuple):
    """The classifiers of the domains of one episode."""

    weight: Float[Tensor, "domains classes features"]
    bias: Float[Tensor, "domains classes"]

    def logits(
        self, features: Float[Tensor, "domains samples features"]
    ) -> Float[Tensor, "domains samples classes"]:
        """Each domain's features by the classifier in the same place."""
        return features @ self.weight.mT + self.bias.unsqueeze(-2)

    def stopped(self) -> Classifiers:
        """The logits with frozen weights: no gradient reaches them."""
        return Classifiers(self.weight.detach(), self.bias.detach())


@final
class DomainClassifiers(nn.Module):
    """The classifiers of all source domains; they begin as torch's linear layers do."""

    def __init__(self, domains: int, features: int, classes: int) -> None:
        super().__init__()
        bound = features**-0.5
        self.weight = nn.Parameter(torch.empty(domains, classes, features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(domains, classes).uniform_(-bound, bound))

    def of(self, domains: Int[Tensor, "picked"]) -> Classifiers:
        """The classifiers of these domains."""
        return Classifiers(self.weight.index_select(0, domains), self.bias.index_select(0, domains))
