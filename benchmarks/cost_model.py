"""What a training step costs, as formulas: `docs/scaling.md` explains them, `bench/scaling.py` checks them.

A step passes D domains of n images through the network. What follows the features is counted here, in units that
take about as long each: products of matrices (two operations for each pair of numbers, as everybody counts them),
draws, logits and parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sizes:
    """What decides the cost of a step."""

    classes: int  # C
    domains: int = 3  # D, of an episode
    images: int = 64  # n, of a domain
    features: int = 32  # F
    width: int = 64  # W, of z and psi
    draws: int = 10  # L_z = L_psi
    network_parameters: int = 0

    @property
    def classes_in_an_episode(self) -> int:
        """S: classifiers are inferred for no more classes than there are images."""
        return min(self.classes, self.domains * self.images)


@dataclass(frozen=True)
class Work:
    """What a step does beside its fixed part."""

    images: int  # that pass through the network, forward and backward
    products: int  # operations in products of matrices after the features, forward and backward
    draws: int  # normal numbers, and what is sampled by them
    logits: int  # that a softmax is taken of
    parameters: int  # that Adam moves
    held: int  # numbers that the losses hold at a time, forward, after the features


@dataclass(frozen=True)
class Constants:
    """Seconds for one of each, on some machine."""

    step: float  # the fixed part: operators that are called, however little they have to do
    image: float
    product: float
    draw: float
    logit: float
    parameter: float

    def seconds(self, work: Work) -> float:
        """How long a step takes."""
        return (
            self.step
            + self.image * work.images
            + self.product * work.products
            + self.draw * work.draws
            + self.logit * work.logits
            + self.parameter * work.parameters
        )


def metavib_step(sizes: Sizes) -> Work:
    """MetaVIB with one meta-test domain.

    Both inference networks have F W + 3 W^2 weights: g. Of what is multiplied, backward takes twice what forward
    does, and once where only one factor is learnt.
    """
    n, s, f, w = sizes.images, sizes.classes_in_an_episode, sizes.features, sizes.width
    g = f * w + 3 * w * w
    pairs = sizes.draws**2 * n * s  # of drawn codes and drawn classifiers
    class_means = 4 * s * (sizes.domains - 1) * n * f
    prior_of_label = 8 * n * s * w
    return Work(
        images=sizes.domains * n,
        products=6 * g * (n + 2 * s) + class_means + prior_of_label + 6 * pairs * w,
        draws=sizes.draws * w * (s + n),
        logits=pairs,
        parameters=sizes.network_parameters + 2 * (g + 4 * w),
        held=2 * pairs + 2 * sizes.draws * w * (s + n) + 8 * w * (n + 2 * s),
    )


def erm_step(sizes: Sizes) -> Work:
    """One softmax over all classes, for every image."""
    images = sizes.domains * sizes.images
    return Work(
        images=images,
        products=6 * images * sizes.features * sizes.classes,
        draws=0,
        logits=images * sizes.classes,
        parameters=sizes.network_parameters + (sizes.features + 1) * sizes.classes,
        held=2 * images * sizes.classes + sizes.features * sizes.classes,
    )


# --- many runs, many processes ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """What is fixed, and what each further one adds."""

    fixed: float
    each: float

    def at(self, count: float) -> float:
        """The value for so many."""
        return self.fixed + self.each * count


def line_through(first: tuple[float, float], second: tuple[float, float]) -> Line:
    """The line through two points (count, value)."""
    each = (second[1] - first[1]) / (second[0] - first[0])
    return Line(first[1] - each * first[0], each)


@dataclass(frozen=True)
class Divided:
    """A step of one run in P processes: the network is divided, all that follows the features is not."""

    network: float  # seconds of it in one process
    rest: float  # seconds of everything else, in every process
    features: int  # bytes that are gathered
    gradients: int  # bytes of the network's gradients, which are summed
    heads: int  # bytes of all other gradients, which come from the first process

    def seconds(self, processes: int, bandwidth: float = math.inf, latency: float = 0.0) -> float:
        """How long a step takes where a process sends so many bytes a second, and a message so long to begin.

        The sum goes around a ring twice (2 (P - 1) messages of 1/P), the features once; the heads go down a tree.
        """
        p = processes
        if p == 1:
            return self.network + self.rest
        around = (p - 1) / p
        sent = 2 * around * self.gradients + around * self.features + self.heads
        messages = 3 * (p - 1) + math.ceil(math.log2(p))
        return self.network / p + self.rest + sent / bandwidth + messages * latency


def point(axis: str, what: str, at: int, predicted: float, measured: float, **more: Any) -> dict[str, Any]:
    """One prediction and its measurement, in milliseconds where nothing else is said, as a record has them."""
    found = {"axis": axis, "what": what, "at": at, "unit": "ms", "predicted": predicted, "measured": measured}
    return found | more
