from __future__ import annotations

from typing import Any

import pytest

from metavib.training.optimizer import Training
from metavib.training.selection import RunState


def considered(accuracies: list[float], images: int, **settings: Any) -> tuple[RunState, int | None]:
    """What is known after these validations, and the step whose parameters are kept."""
    state, kept = RunState(), None
    for step, accuracy in enumerate(accuracies, start=1):
        if state.consider(step, accuracy, images, Training(**settings)):
            kept = step
    return state, kept


@pytest.mark.parametrize(
    ("accuracies", "kept"),
    [
        ([0.5], 1),
        ([0.5, 0.46], 2),  # of 100 images, the standard error at 0.5 is 0.05
        ([0.5, 0.44], 1),
        ([0.5, 0.46, 0.44], 2),  # the best counts, not the kept one
        ([0.5, 0.46, 0.42, 0.7, 0.6], 4),
        ([0.8, 0.77, 0.761, 0.759], 3),  # at 0.8 it is 0.04
        ([1.0, 0.99], 1),  # and at 1 there is none
        ([1.0, 1.0], 2),
        ([0.0, 0.0], 2),
    ],
)
def test_the_latest_model_within_one_standard_error_of_the_best_is_kept(
    accuracies: list[float], kept: int
) -> None:
    state, kept_parameters = considered(accuracies, 100)
    assert (state.step, state.accuracy) == (kept, accuracies[kept - 1])
    assert state.best_accuracy == max(accuracies)
    assert kept_parameters == kept


def test_few_validation_images_forgive_more() -> None:
    assert considered([0.5, 0.4], 25)[0].step == 2
    assert considered([0.5, 0.4], 26)[0].step == 1


def test_the_rule_last_keeps_no_parameters_and_tells_the_last_accuracy() -> None:
    state, kept_parameters = considered([0.9, 0.1], 100, selection="last")
    assert (state.step, state.accuracy, kept_parameters) == (2, 0.1, None)


@pytest.mark.parametrize(
    ("accuracies", "patience", "stopped"),
    [
        ([0.5, 0.5], 1, 2),  # as good is not better
        ([0.5, 0.6, 0.7], 1, None),
        ([0.5, 0.4, 0.6, 0.5, 0.6], 2, 5),  # the best one begins the count again
        ([0.0, 0.0], 2, 2),
        ([0.5, 0.4, 0.3, 0.2], 0, None),
    ],
)
def test_patience_ends_after_so_many_validations_without_a_better_one(
    accuracies: list[float], patience: int, stopped: int | None
) -> None:
    state, _ = considered(accuracies, 100, patience=patience)
    assert state.stopped == stopped
    assert state.going == (stopped is None)


@pytest.mark.parametrize("selection", ["highest-validation", "oracle"])
def test_the_highest_accuracy_is_kept_and_of_equals_the_latest(selection: str) -> None:
    state, kept = considered([0.5, 0.6, 0.59, 0.6, 0.58], 10, selection=selection)
    assert (state.step, kept) == (4, 4)
