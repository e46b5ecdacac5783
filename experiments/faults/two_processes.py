"""Two processes told to work on the same runs: the second is refused, and a killed first one is no obstacle.

The first is stopped (SIGSTOP) in the middle of its work, so that it holds what it holds for as long as it takes,
and then killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from faults.kills import cache_command
from faults.workshop import Command, Workshop, checkpoint_steps, left_in

Arguments = Callable[[Path], list[str]]
ATTEMPTS = 10  # to stop a process in the middle: we may be the slower one


def cases(workshop: Workshop) -> dict[str, tuple[Arguments, Arguments]]:
    """What the first process works on, and what the second is told to, in the same folder."""
    shared = "images-photo-metavib-seed1"  # of the grid's runs
    return {
        "the same run": (
            lambda out: workshop.training(out, steps=100),
            lambda out: workshop.training(out, steps=100),
        ),
        "the same grid": (workshop.grid, workshop.grid),
        "a grid that shares a run": (
            workshop.grid,
            lambda out: workshop.grid(out, "--target", "cartoon,photo", "--batch", "2"),
        ),
        "a run of a grid": (
            workshop.grid,
            lambda out: workshop.training(out / shared, "--target", "photo", steps=16),
        ),
    }


def try_all(workshop: Workshop, tell: Callable[[str], None]) -> dict[str, Any]:
    """Who comes second, and to what."""
    found = {name: try_one(workshop, name) for name in cases(workshop)}
    found["the same images, not decoded yet"] = try_cache(workshop)
    for name, one in found.items():
        tell(f"a second process, {name}: {one}")
    return found


def try_one(workshop: Workshop, name: str) -> dict[str, Any]:
    """A second process while the first has made some steps, and once it is killed."""
    first, second = cases(workshop)[name]
    out, undisturbed = (workshop.root / f"two-{name}-{which}".replace(" ", "-") for which in ("of", "one"))
    environment = {"METAVIB_CACHE": str(workshop.cache)}

    def command(arguments: list[str]) -> Command:
        return Command(arguments, workshop.root / "said", environment)

    def owner() -> Command:
        said = workshop.root / "said-first"
        return Command([*first(out), "--checkpoint-seconds", "0"], said, environment)

    with _stopped(owner, out, lambda: bool(checkpoint_steps(out))):
        before = _all_files(out)
        late = command(second(out)).start()
        status = late.wait()
        lines = (
            late.errors.splitlines()
        )  # a grid says first how many runs it has, and how long they will take
        refused = status == 2 and len(lines) <= 3 and "in use by another" in lines[-1]
        said, untouched = late.errors.strip(), _all_files(out) == before
    again = command(first(out)).start()
    goes_on = again.wait() == 0
    if command(first(undisturbed)).start().wait() != 0:
        raise RuntimeError("the undisturbed process failed")
    identical = goes_on and left_in(out) == left_in(undisturbed)
    return {
        "survived": refused and untouched and identical,
        "refused": refused,
        "untouched": untouched,
        "goes_on_after_the_kill": goes_on,
        "identical": identical,
        "said": said[-300:].replace(str(workshop.root), "OUT"),
    }


def try_cache(workshop: Workshop) -> dict[str, Any]:
    """A second process waits for the one that decodes the same images, and does so itself once that is killed."""
    folder = workshop.root / "two-cache"
    environment = {"METAVIB_CACHE": str(folder / "cache")}

    def owner() -> Command:
        return Command(cache_command(workshop, folder / "first"), workshop.root / "said-first", environment)

    with _stopped(owner, folder, lambda: any(folder.rglob("*.partial"))):
        late = Command(
            cache_command(workshop, folder / "second"), workshop.root / "said", environment
        ).start()
        time.sleep(1.0)  # in which it may come to the lock
        waits = late.status is None
    goes_on = late.wait() == 0
    return {"survived": waits and goes_on, "waits": waits, "goes_on_after_the_kill": goes_on}


@contextlib.contextmanager
def _stopped(owner: Callable[[], Command], folder: Path, far_enough: Callable[[], bool]) -> Iterator[None]:
    """A process that has come so far, and no further; killed in the end."""
    for _ in range(ATTEMPTS):
        command = owner().start()
        try:
            while command.status is None and not far_enough():
                time.sleep(0.0005)
            os.kill(command.process.pid, signal.SIGSTOP)
            if command.status is None and far_enough() and not any(folder.rglob("results.json")):
                yield
                return
        finally:
            command.kill()
        shutil.rmtree(folder, ignore_errors=True)
    raise RuntimeError(
        f"the first process was done {ATTEMPTS} times before it could be stopped: {command.errors}"
    )


def _all_files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
