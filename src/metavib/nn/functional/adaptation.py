"""Inner steps of meta-learning: parameters moved along a gradient, by a path that can be differentiated again."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.func import grad_and_value

from metavib.core.shapes import Float

Parameters = dict[str, Tensor]


def adapted(
    objective: Callable[[Parameters], Float[Tensor, ""]],
    parameters: Parameters,
    rate: float | Float[Tensor, ""],
    *,
    second_order: bool = True,
) -> tuple[Parameters, Float[Tensor, ""]]:
    """theta' = theta - rate grad objective(theta), and objective(theta).

    Both can be differentiated by theta and by whatever else the objective depends on. Without `second_order` the
    gradient counts as a constant, so that d theta' / d theta = 1.
    """
    gradients, value = grad_and_value(objective)(parameters)
    if not second_order:
        gradients = stopped(gradients)
    return moved(parameters, gradients, rate), value


def moved(parameters: Parameters, gradients: Parameters, rate: float | Float[Tensor, ""]) -> Parameters:
    """theta - rate gradient."""
    return {name: own - rate * gradients[name] for name, own in parameters.items()}


def stopped(parameters: Parameters) -> Parameters:
    """stop_gradient(theta): equal values, through which no gradient passes."""
    return {name: own.detach() for name, own in parameters.items()}
