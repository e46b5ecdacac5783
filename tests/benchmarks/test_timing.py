"""Times by a clock of the test's own, so that a busy machine changes nothing."""

from __future__ import annotations

import pytest
import torch

from benchmarks.timing import milliseconds

CPU = torch.device("cpu")


class Clock:
    """Time that passes only while somebody naps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def nap(self, seconds: float) -> None:
        self.now += seconds


def test_the_median_of_turns_is_not_moved_by_one_slow_moment() -> None:
    clock = Clock()
    naps = iter([7.0, 7.0, 0.001, 0.5, 0.001])  # two to warm up, then three rounds
    works = {"work": lambda: clock.nap(next(naps))}
    times = milliseconds(works, CPU, rounds=3, repeats=1, warm_up=2, clock=clock)
    assert times["work"] == pytest.approx(1)


def test_works_take_turns_and_each_call_counts_once() -> None:
    calls: list[str] = []
    works = {name: lambda name=name: calls.append(name) for name in "ab"}
    milliseconds(works, CPU, rounds=2, repeats=3, warm_up=1)
    assert calls == ["a", "b", *"aaabbb" * 2]


def test_a_time_is_that_of_one_call() -> None:
    clock = Clock()
    works = {"nap": lambda: clock.nap(0.01)}
    times = milliseconds(works, CPU, rounds=1, repeats=4, warm_up=0, clock=clock)
    assert times["nap"] == pytest.approx(10)
