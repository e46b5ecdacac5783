from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from metavib.nn.functional.adaptation import Parameters, adapted, stopped


def cubic(parameters: Parameters) -> Tensor:
    return (parameters["theta"] ** 3).sum()


def after_a_step(theta: Tensor, *, second_order: bool = True) -> Tensor:
    """The cube of theta' = theta - 0.1 * 3 theta^2."""
    moved, _ = adapted(cubic, {"theta": theta}, 0.1, second_order=second_order)
    return cubic(moved)


def test_a_step_goes_down_the_gradient_and_tells_the_value_before_it() -> None:
    moved, value = adapted(cubic, {"theta": torch.tensor([2.0, 1.0])}, 0.1)
    torch.testing.assert_close(moved, {"theta": torch.tensor([2 - 0.1 * 12, 1 - 0.1 * 3])})
    assert value == 9


@pytest.mark.parametrize(("second_order", "slope"), [(True, 1 - 0.6 * 2.0), (False, 1.0)])
def test_its_derivative_has_the_second_order_or_not(second_order: bool, slope: float) -> None:
    theta = torch.tensor([2.0])
    expected = 3 * (2 - 1.2) ** 2 * slope

    def objective(given: Tensor) -> Tensor:
        return after_a_step(given, second_order=second_order)

    assert grad(objective)(theta).item() == pytest.approx(expected)
    assert vmap(grad(objective))(theta[None]).item() == pytest.approx(expected)
    tracked = theta.requires_grad_()
    objective(tracked).backward()
    assert tracked.grad is not None
    assert tracked.grad.item() == pytest.approx(expected)


def test_two_steps_agree_with_finite_differences() -> None:
    def objective(theta: Tensor, rate: Tensor) -> Tensor:
        moved, _ = adapted(cubic, {"theta": theta}, rate)
        moved, before = adapted(cubic, moved, rate)
        return cubic(moved) + before

    theta = torch.tensor([0.7, -0.4, 1.1], dtype=torch.float64, requires_grad=True)
    rate = torch.tensor(0.05, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(objective, (theta, rate))


def test_one_sum_gives_each_group_of_parameters_the_gradient_of_its_own_objective() -> None:
    def total(theta: Tensor, phi: Tensor) -> Tensor:
        first, second = {"theta": theta}, {"phi": phi}
        of_theta = (first["theta"] * stopped(second)["phi"]).sum()
        of_phi = (stopped(first)["theta"] * second["phi"] ** 2).sum()
        return of_theta + of_phi

    both = grad(total, argnums=(0, 1))
    theta, phi = torch.tensor([[2.0]]), torch.tensor([[3.0]])
    for found in (both(theta[0], phi[0]), vmap(both)(theta, phi)):
        assert [value.item() for value in found] == [3.0, 12.0]


def test_a_move_of_ones_own_is_the_gradient_of_half_a_squared_distance() -> None:
    theta, moved = torch.tensor([1.0, -2.0]), torch.tensor([0.5, -1.0])

    def distance(given: Tensor) -> Tensor:
        goal = stopped({"theta": given + moved})["theta"]
        return 0.5 * (given - goal).square().sum()

    torch.testing.assert_close(grad(distance)(theta), -moved)
