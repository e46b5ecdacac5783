from __future__ import annotations

import time

import pytest
import torch

from metavib.bench.timing import milliseconds

CPU = torch.device("cpu")


def test_the_median_of_turns_is_not_moved_by_one_slow_moment() -> None:
    naps = iter([0.0, 0.0, 0.001, 0.5, 0.001])  # two to warm up, then three rounds
    times = milliseconds({"work": lambda: time.sleep(next(naps))}, CPU, rounds=3, repeats=1, warm_up=2)
    assert 1 <= times["work"] < 100


def test_works_take_turns_and_each_call_counts_once() -> None:
    calls: list[str] = []
    works = {name: lambda name=name: calls.append(name) for name in "ab"}
    milliseconds(works, CPU, rounds=2, repeats=3, warm_up=1)
    assert calls == ["a", "b", *"aaabbb" * 2]


def test_a_time_is_that_of_one_call() -> None:
    times = milliseconds({"nap": lambda: time.sleep(0.01)}, CPU, rounds=1, repeats=4, warm_up=0)
    assert times["nap"] == pytest.approx(10, abs=8)
