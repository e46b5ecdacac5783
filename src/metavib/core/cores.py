"""Cores of a CPU: how many the process may use, how many others leave it, and how many threads torch gets.

A step whose threads wait for cores that others have is far slower than one with fewer threads: each operator
ends when its last thread does. So on a busy machine torch gets as many threads as there are idle cores.
OMP_NUM_THREADS, where it is set, and `--threads` decide otherwise.

The number of threads decides how sums are divided, and so how they round: a run keeps the number that it began
with.
"""

import contextlib
import math
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from metavib.core.control_groups import groups_of_process
from metavib.core.errors import UserError

VARIABLE = "OMP_NUM_THREADS"
_LOOKS, _SECONDS_BETWEEN = 5, 0.02  # at what runs just now: whoever waits for a disk does not count


def allowed(root: Path = Path("/")) -> int:
    """Cores that the process may use: those it may run on, and no more than its control groups have time for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(root)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def idle(root: Path = Path("/")) -> int:
    """Of the allowed cores, those that others leave; one at least.

    Others keep a core busy where both the load of the last minute and what runs just now say so: the load
    remembers the command that ended a moment ago, and what runs now may be over in a moment.
    """
    cores = allowed(root)
    try:
        load = float((root / "proc/loadavg").read_text().split()[0])
        running = []
        for look in range(_LOOKS):
            time.sleep(_SECONDS_BETWEEN if look else 0.0)
            found = re.match(r"(\S+ ){3}(\d+)/", (root / "proc/loadavg").read_text())
            running.append(int(found[2]) - 1 if found else 0)  # without this process
    except (OSError, ValueError, IndexError):  # elsewhere than on Linux
        return cores
    busy = round(min(load, sum(running) / len(running)))
    return max(1, cores - busy)


def check(threads: int | None) -> None:
    """`--threads` must be a number of threads that there are cores for."""
    most = allowed()
    if threads is not None and not 1 <= threads <= most:
        raise UserError(
            f"--threads {threads} must be from 1 to {most}, the number of cores that this process may use."
        )


def usual() -> int | None:
    """How many threads torch should have where nobody says: one for each idle core.

    None where torch should be left as it is: OMP_NUM_THREADS is set, and torch has read it.
    """
    if os.environ.get(VARIABLE):
        return None
    import torch

    return min(torch.get_num_threads(), idle())  # of two threads of a core it takes one


@contextlib.contextmanager
def used_by_torch(threads: int | None) -> Iterator[None]:
    """Within the block torch has so many threads; None leaves it as it is."""
    import torch  # here: an error of the command line is told before torch is loaded

    former = torch.get_num_threads()
    torch.set_num_threads(threads or former)
    try:
        yield
    finally:
        torch.set_num_threads(former)


def _quota(root: Path) -> float | None:
    """How many cores' time the control groups of the process allow; None where they set no limit."""
    found = [_quota_of(folder, old=first_version) for folder, first_version in groups_of_process(root, "cpu")]
    return min((quota for quota in found if quota is not None), default=None)


def _quota_of(group: Path, *, old: bool) -> float | None:
    """Of one control group: microseconds of computing in each period of so many."""
    try:
        if old:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            quota, period = (int((group / name).read_text()) for name in names)
        else:
            quota, period = (int(word) for word in (group / "cpu.max").read_text().split())
    except (OSError, ValueError):  # "max" is not a number
        return None
    return quota / period if quota > 0 and period > 0 else None
