from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from metavib.training.averaging import (
    OPTIMUM_PATIENCE,
    OVERFIT_PATIENCE,
    TOLERANCE,
    MovingAverage,
    NoAverage,
    Swad,
    Valley,
    ValleyState,
    average_of,
    exponential,
)

NOBODY = torch.zeros(2)


def weights(*values: float) -> dict[str, Tensor]:
    """Two runs with one parameter [2, 3] each."""
    return {"w": torch.tensor(values).view(2, 1, 1) * torch.ones(2, 2, 3)}


# --- the valley -------------------------------------------------------------------------------------------


def test_the_valley_begins_with_the_best_of_three_and_ends_before_six_too_many() -> None:
    valley = Valley()
    falling = [valley.observe(10 * number, loss) for number, loss in enumerate([3, 2, 1, 2], start=1)]
    assert falling == [ValleyState.BEFORE] * 4
    assert valley.observe(50, 3) is ValleyState.ENTERED
    assert valley.threshold == pytest.approx(1.3 * 2)
    assert valley.inside == 30  # the segments that ended at 30, 40 and 50
    assert valley.observe(60, 2.0) is ValleyState.INSIDE
    assert [valley.observe(step, 2.7) for step in (70, 80, 90, 100, 110)] == [ValleyState.DOUBTFUL] * 5
    assert (valley.inside, valley.waiting) == (40, 50)
    assert valley.observe(120, 2.0) is ValleyState.INSIDE  # what was in doubt is in the valley after all
    assert (valley.inside, valley.waiting) == (100, 0)
    last = [valley.observe(step, 9) for step in (130, 140, 150, 160, 170, 180)]
    assert last == [ValleyState.DOUBTFUL] * 5 + [ValleyState.LEFT]
    assert (valley.inside, valley.waiting) == (100, 0)


def test_a_loss_that_stays_the_same_is_a_valley_at_once() -> None:
    valley = Valley()
    assert [valley.observe(step, 1.0) for step in (1, 2, 3)] == [
        ValleyState.BEFORE,
        ValleyState.BEFORE,
        ValleyState.ENTERED,
    ]


def averaged_steps(losses: list[float], every: int) -> tuple[list[int], int]:
    """Algorithm 1 of the paper, written down plainly: the steps that are averaged, and the last one trained."""
    start = threshold = None
    for last in range(len(losses)):
        if threshold is None:
            window = losses[max(last - OPTIMUM_PATIENCE + 1, 0) : last + 1]
            if len(window) == OPTIMUM_PATIENCE and window[0] == min(window):
                start = last - OPTIMUM_PATIENCE + 1
                threshold = TOLERANCE * sum(window) / OPTIMUM_PATIENCE
                entered = last
        elif last - OVERFIT_PATIENCE >= entered and all(
            loss > threshold for loss in losses[last - OVERFIT_PATIENCE + 1 : last + 1]
        ):
            end = last - OVERFIT_PATIENCE
            return list(range(start * every + 1, (end + 1) * every + 1)), (last + 1) * every
    first = len(losses) - 1 if start is None else start
    return list(range(first * every + 1, len(losses) * every + 1)), len(losses) * every


@given(
    losses=st.lists(st.sampled_from([0.5, 1.0, 1.2, 2.0, 4.0]), min_size=1, max_size=25),
    every=st.integers(1, 3),
)
def test_swad_is_the_mean_of_the_steps_that_the_paper_averages(losses: list[float], every: int) -> None:
    expected, trained = averaged_steps(losses, every)
    parameters = weights(0.0, 0.0)
    swad, valley = Swad(parameters), Valley()
    step = 0
    for loss in losses:
        for _ in range(every):
            step += 1
            parameters["w"].fill_(step)
            swad.update(torch.tensor(step - 1), NOBODY)
        goes_on = swad.validated(0, valley, step, loss)
        swad.next_segment()
        if not goes_on:
            break
    assert step == trained
    chosen = swad.chosen(0, valley)
    assert chosen is not None
    torch.testing.assert_close(chosen["w"], torch.full((2, 3), sum(expected) / len(expected)))


def test_a_run_that_was_never_validated_has_no_average() -> None:
    assert Swad(weights(1.0, 2.0)).chosen(0, Valley()) is None


def test_each_run_has_its_own_valley_and_a_held_one_adds_nothing() -> None:
    parameters = weights(1.0, 10.0)
    swad, valleys = Swad(parameters), [Valley(), Valley()]
    for step, losses in enumerate([(1, 3), (1, 2), (1, 1), (1, 0.5)], start=1):
        held = torch.tensor([0.0, 1.0 if step == 4 else 0.0])
        parameters["w"].add_(1)
        swad.update(torch.tensor(step - 1), held)
        for run, loss in enumerate(losses):
            swad.validated(run, valleys[run], step, loss)
        swad.next_segment()
    first, second = (swad.chosen(run, valley) for run, valley in enumerate(valleys))
    assert first is not None
    assert second is not None
    torch.testing.assert_close(first["w"], torch.full((2, 3), (2 + 3 + 4 + 5) / 4))
    torch.testing.assert_close(second["w"], torch.zeros(2, 3))  # its last segment was held


# --- the moving average -----------------------------------------------------------------------------------


def test_the_moving_average_follows_its_recursion() -> None:
    parameters = weights(0.0, 5.0)
    average = MovingAverage(parameters, "ema", exponential(0.3))
    expected = torch.tensor([0.0, 5.0])
    for step in range(6):
        parameters["w"].add_(torch.tensor([1.0, -2.0]).view(2, 1, 1))
        average.update(torch.tensor(step), NOBODY)
        decay = min(0.3, (step + 1) / (step + 10))
        expected = decay * expected + (1 - decay) * parameters["w"][:, 0, 0]
    torch.testing.assert_close(average.average["w"][:, 0, 0], expected)


def test_a_decay_of_zero_follows_the_weights() -> None:
    parameters = weights(0.0, 5.0)
    average = MovingAverage(parameters, "ema", exponential(0.0))
    parameters["w"].mul_(3).add_(1)
    average.update(torch.tensor(0), NOBODY)
    assert torch.equal(average.average["w"], parameters["w"])


def test_the_average_of_a_held_run_stays() -> None:
    parameters = weights(0.0, 5.0)
    average = MovingAverage(parameters, "ema", exponential(0.5))
    parameters["w"].add_(8)
    average.update(torch.tensor(100), torch.tensor([1.0, 0.0]))
    assert average.average["w"][:, 0, 0].tolist() == [0.0, 9.0]


def test_in_place_the_parameters_hold_the_average_and_then_again_their_own() -> None:
    parameters = weights(0.0, 5.0)
    average = MovingAverage(parameters, "ema", exponential(0.5))
    parameters["w"].add_(8)
    with average.in_place():
        assert parameters["w"][:, 0, 0].tolist() == [0.0, 5.0]
    assert parameters["w"][:, 0, 0].tolist() == [8.0, 13.0]


@pytest.mark.parametrize(("steps", "first"), [(30, 3), (5, 0)])
def test_the_simple_average_is_the_mean_of_all_steps_but_the_first_tenth(steps: int, first: int) -> None:
    parameters = weights(0.0, 5.0)
    average = average_of("sma", 0.9, parameters, steps)
    seen = []
    for step in range(steps):
        parameters["w"].add_(torch.tensor([step, 1.0]).view(2, 1, 1))
        average.update(torch.tensor(step), NOBODY)
        seen.append(parameters["w"].clone())
        if step <= first:  # until then the average is the weights
            assert torch.equal(average.state()["sma/w"], parameters["w"])
    torch.testing.assert_close(average.state()["sma/w"], torch.stack(seen[first:]).mean(dim=0))


# --- all of them ------------------------------------------------------------------------------------------


KINDS = [("none", NoAverage), ("ema", MovingAverage), ("sma", MovingAverage), ("swad", Swad)]


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_an_average_goes_on_from_its_state(name: str, kind: type) -> None:
    parameters = weights(1.0, 2.0)
    one = average_of(name, 0.9, parameters, 5)
    assert type(one) is kind
    valley = Valley()
    for step in range(1, 6):
        parameters["w"].mul_(1.5)
        one.update(torch.tensor(step), NOBODY)
        one.validated(0, valley, step, 1.0)
        one.next_segment()
    saved = {key: value.clone() for key, value in one.state().items()}
    another = average_of(name, 0.9, {key: value.clone() for key, value in parameters.items()}, 5)
    another.restore(saved)
    before, after = one.chosen(0, valley), another.chosen(0, valley)
    assert (before is None) == (after is None) == (name == "none")
    if before is not None and after is not None:
        assert torch.equal(before["w"], after["w"])
