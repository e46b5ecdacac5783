"""SIGKILL at random moments: a command is killed and called again until it has done its work, then compared.

A moment is drawn from the whole life of the process, from the part of it in which it writes (both as long as an
undisturbed one was measured to take), or from the moments in which a file is half written. A process that ends
before its moment has come is compared, and the next one begins in a new folder.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from faults.workshop import Command, Workshop, checkpoint_steps, damage_in, half_written, left_in

COLD_SECONDS = 4.0  # in which Python starts and imports torch
FRUITLESS = 8  # times as many processes as kills are started at most


@dataclass(frozen=True)
class Kind:
    """Work that is killed: a command in a folder, which may be called again and again."""

    command: Callable[[Workshop, Path], list[str]]
    own_cache: bool = False
    needs: str = ""  # a module that may not be installed

    @property
    def possible(self) -> bool:
        """Whether it can be tried here."""
        return not self.needs or importlib.util.find_spec(self.needs) is not None


def report_command(workshop: Workshop, folder: Path) -> list[str]:
    """A page, and figures in a folder beside it."""
    return ["report", str(workshop.finished), "-o", str(folder / "report.html"), "--device", "cpu"]


def cache_command(workshop: Workshop, folder: Path) -> list[str]:
    """A run of one step on images that take a while to decode."""
    command = workshop.training(folder / "run", steps=1)
    command[1] = str(workshop.pictures)
    return command


# A kind of work is a line here.
KINDS: dict[str, Kind] = {
    "training": Kind(lambda workshop, folder: workshop.training(folder / "run", steps=60)),
    "training, three runs stacked": Kind(lambda workshop, folder: workshop.grid(folder, steps=24)),
    "building the cache": Kind(cache_command, own_cache=True),
    "writing checkpoints": Kind(
        # Large ones after every step: there is hardly a moment without a file half written.
        lambda workshop, folder: workshop.training(
            folder / "run", "--checkpoint-seconds", "0", "--set", "latent_width=256", steps=30
        )
    ),
    "reporting": Kind(report_command),
    "sweeping": Kind(lambda workshop, folder: workshop.sweep(folder / "sweep")),
    "sweeping, on Ray": Kind(
        lambda workshop, folder: workshop.sweep(folder / "sweep", "--engine", "ray"), needs="ray"
    ),
}


@dataclass
class Tally:
    """What the kills of one kind came to."""

    kills: int = 0
    kills_during_start: int = 0  # of Python itself
    caught_writing: int = 0  # with a file half written
    resumptions: int = 0  # calls that went on after a kill
    finished: int = 0  # folders in which the work was done in the end
    damaged: int = 0  # files that were not whole under their final names
    lost: int = 0  # times that a checkpoint was there before a kill and not after
    refused: int = 0  # calls that ended with an error
    identical: bool = True  # what was left, weights and all, to what an undisturbed process leaves
    seconds: float = 0.0
    complaints: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """Nothing was lost or damaged."""
        return self.identical and not (self.damaged or self.lost or self.refused or self.complaints)


def prepare(workshop: Workshop) -> None:
    """A finished run to report on and to export."""
    said, cache = workshop.root / "said", {"METAVIB_CACHE": str(workshop.cache)}
    command = Command(workshop.training(workshop.finished), said, cache).start()
    if command.wait() != 0:
        raise RuntimeError(f"the run to report on could not be trained: {command.errors}")


def kill_at_random(
    workshop: Workshop, name: str, kills: int, seed: int, tell: Callable[[str], None] = lambda text: None
) -> Tally:
    """Kill one kind of work so many times."""
    began = time.monotonic()
    campaign = _Campaign(workshop, KINDS[name], random.Random(f"{seed} {name}"))  # noqa: S311
    tally = campaign.tally
    started = 0
    while tally.kills < kills and tally.sound:
        if started > FRUITLESS * kills + 10:
            tally.complaints += (f"only {tally.kills} of {started} processes were there to be killed",)
            break
        started += 1
        campaign.kill_once(cold=tally.kills == kills // 2 and not tally.kills_during_start)
        tell(f"{name}: {tally.kills} of {kills} killed")
    campaign.finish()
    tally.seconds = round(time.monotonic() - began, 1)
    return tally


class _Campaign:
    """The folders of one kind of work, one after another."""

    def __init__(self, workshop: Workshop, kind: Kind, chance: random.Random) -> None:
        self.workshop, self.kind, self.chance = workshop, kind, chance
        self.tally = Tally()
        self.number, self.killed_here = 0, 0
        reference = workshop.root / "undisturbed"
        for left in (
            reference,
            *workshop.root.glob("killed*"),
        ):  # of another kind of work that did not survive
            shutil.rmtree(left, ignore_errors=True)
        command = self._command(reference).start()
        before = _signs(reference)
        while command.status is None and _signs(reference) == before:
            time.sleep(0.001)
        wrote = time.monotonic()
        if command.wait() != 0:
            raise RuntimeError(f"the undisturbed process failed: {command.errors}")
        self.life, self.writing = time.monotonic() - command.began, time.monotonic() - wrote
        self.expected = left_in(reference)

    @property
    def folder(self) -> Path:
        """Where the work is done that is killed now."""
        return self.workshop.root / f"killed{self.number}"

    def kill_once(self, *, cold: bool) -> None:
        """Start a process, and kill it unless it is done before."""
        steps = checkpoint_steps(self.folder)
        command = self._command(self.folder, cold=cold).start()
        if cold:
            time.sleep(self.chance.uniform(0, COLD_SECONDS))
        else:
            self._wait_for_the_moment(command)
        self.tally.resumptions += self.killed_here > 0
        status = command.kill()
        if status != -signal.SIGKILL:
            self._finished(command, status)
            return
        self.tally.kills += 1
        self.killed_here += 1
        self.tally.kills_during_start += cold
        self.tally.caught_writing += bool(half_written(self.folder))
        damage = damage_in(self.folder, self.expected)
        now = checkpoint_steps(self.folder)
        lost = [place for place, step in steps.items() if now.get(place, step) < step]
        self.tally.damaged += len(damage)
        self.tally.lost += len(lost)
        self.tally.complaints += (*damage[:3], *lost[:3])

    def _wait_for_the_moment(self, command: Command) -> None:
        """Any in the life of the process, any from its first write on, or any in which a file is half written."""
        before, halves = _signs(self.folder), set(half_written(self.folder))

        def wait(going_on: Callable[[], bool]) -> None:
            while command.status is None and going_on():
                time.sleep(0.0005)

        draw = self.chance.uniform
        phase = self.chance.randrange(3)
        if phase == 0:
            moment = command.began + draw(0, self.life)
            wait(lambda: time.monotonic() < moment)
            return
        wait(lambda: _signs(self.folder) == before)
        moment = time.monotonic() + draw(0, self.writing)
        wait(lambda: time.monotonic() < moment)
        if phase == 2:
            wait(lambda: set(half_written(self.folder)) <= halves)

    def finish(self) -> None:
        """Let the last one do its work in peace."""
        if self.killed_here and self.tally.sound:
            self.tally.resumptions += 1
            command = self._command(self.folder).start()
            self._finished(command, command.wait())

    def _finished(self, command: Command, status: int) -> None:
        """Compare what was left, and begin in a new folder."""
        if status != 0:
            self.tally.refused += 1
            self.tally.complaints += (command.errors[-500:],)
            return
        if self.killed_here == 0:  # a whole life; the undisturbed one may have been slow
            ratio = min(1.0, (time.monotonic() - command.began) / self.life)
            self.life, self.writing = self.life * ratio, self.writing * ratio
        found = left_in(self.folder)
        if found != self.expected:
            self.tally.identical = False
            names = {name for name in found | self.expected if found.get(name) != self.expected.get(name)}
            self.tally.complaints += (f"{self.folder}: {', '.join(sorted(names)[:5])} differ",)
            return
        self.tally.finished += 1
        shutil.rmtree(self.folder)
        self.number, self.killed_here = self.number + 1, 0

    def _command(self, folder: Path, *, cold: bool = False) -> Command:
        folder.mkdir(parents=True, exist_ok=True)
        cache = folder / "cache" if self.kind.own_cache else self.workshop.cache
        said = self.workshop.root / "said"
        return Command(self.kind.command(self.workshop, folder), said, {"METAVIB_CACHE": str(cache)}, cold)


def _signs(folder: Path) -> list[tuple[str, int]]:
    """What changes as soon as anything in the folder is written."""
    found = []
    for path, _, files in os.walk(folder):
        with contextlib.suppress(FileNotFoundError):  # gone again
            found += [(path, os.stat(path).st_mtime_ns), *((file, 0) for file in files)]
    return found
