"""Times that can be compared: warmed up, taken in turns, the median of many."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch

Work = Callable[[], object]
Clock = Callable[[], float]


def milliseconds(
    works: Mapping[str, Work],
    device: torch.device,
    *,
    rounds: int,
    repeats: int,
    warm_up: int = 5,
    clock: Clock = time.perf_counter,
) -> dict[str, float]:
    """The time of one call of each work. They take turns, so that a slow moment of the machine hits them all.

    On a CPU that has other work to do, `time.process_time` is the clock that can be relied on.
    """
    for work in works.values():
        for _ in range(warm_up):
            work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            times[name].append(_timed(work, device, repeats, clock))
    return {name: statistics.median(values) for name, values in times.items()}


def _timed(work: Work, device: torch.device, repeats: int, clock: Clock) -> float:
    _wait(device)
    started = clock()
    for _ in range(repeats):
        work()
    _wait(device)
    return 1000 * (clock() - started) / repeats


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
