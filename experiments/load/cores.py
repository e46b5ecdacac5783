"""What the cores of this machine do, as Linux counts it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple


class Spent(NamedTuple):
    """A span of time, and what was computed in it."""

    seconds: float
    cpu_seconds: dict[str, float]  # of each process that was asked for
    cores_of_others: float  # that were at work for something else


class Cores:
    """Counts from now on, for these processes and for all others together."""

    def __init__(self, **processes: int) -> None:
        self.processes = processes
        self.used = {name: cpu_seconds(number) for name, number in processes.items()}
        self.machine, self.started = machine_seconds(), time.perf_counter()

    def until_now(self) -> Spent:
        """Since then."""
        seconds = time.perf_counter() - self.started
        used = {name: cpu_seconds(number) - self.used[name] for name, number in self.processes.items()}
        others = machine_seconds() - self.machine - sum(used.values())
        return Spent(seconds, used, max(0.0, others / seconds))


def cpu_seconds(process: int) -> float:
    """What a process has computed so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine_seconds() -> float:
    """What all processes have computed so far."""
    words = Path("/proc/stat").read_text().split(maxsplit=9)
    user, nice, system, _, _, interrupts, soft, stolen = map(int, words[1:9])
    return (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")
