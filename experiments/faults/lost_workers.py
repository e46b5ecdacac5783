"""Sweeps that lose their workers: killed at random moments, on both engines, and with the whole node they were on.

The driver must give what was lost to another worker, which goes on from the last checkpoint, and end with what an
undisturbed sweep leaves, byte for byte, the table included.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from faults.workshop import (
    Command,
    Workshop,
    checkpoint_steps,
    command_line,
    descendants,
    is_alive,
    left_in,
    wait_for,
)

AT_WORK = ("metavib.runs.sweep.worker", "ray::train_packet")  # what a worker that has a packet is called
LIFE = 1.5  # seconds: a worker is killed at any moment of them, if it is still there
ROUNDS = 6  # sweeps at most, until one has lost what it was to lose
RETRIES = ("--retries", "20")
GOES_ON = "goes on from its last"


@dataclass
class Losses:
    """What became of sweeps that lost workers."""

    kills: int = 0
    retried: int = 0  # packets that were given to another worker
    sweeps: int = 0
    identical: bool = True  # to what an undisturbed sweep leaves
    survived: bool = True
    complaint: str = ""
    seconds: float = 0.0


def try_all(workshop: Workshop, seed: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Both engines, and two nodes."""
    cases: dict[str, Callable[[], Losses]] = {
        "a worker of this machine": lambda: lose_workers(workshop, "local", 3, seed)
    }
    if importlib.util.find_spec("ray") is not None:
        cases["a worker of Ray"] = lambda: lose_workers(workshop, "ray", 2, seed)
        cases["the second of two nodes of Ray"] = lambda: lose_node(workshop, seed)
    else:
        tell("workers of Ray: not tried, ray is not installed")
    found = {}
    for name, case in cases.items():
        found[name] = asdict(case())
        tell(f"lost, {name}: {found[name]}")
    return found


def lose_workers(workshop: Workshop, engine: str, kills: int, seed: int) -> Losses:
    """Kill so many workers of as many sweeps as it takes."""
    chance, began = random.Random(f"{seed} {engine}"), time.monotonic()  # noqa: S311
    losses = Losses()
    out = workshop.root / "lost-workers"
    while losses.kills < kills and losses.sweeps < ROUNDS and losses.survived:
        command = _started(workshop, workshop.sweep(out, "--engine", engine, *RETRIES))
        while command.status is None and losses.kills < kills:
            losses.kills += _killed_at_random(lambda c=command: descendants(c.process.pid), command, chance)
        _ended(workshop, command, out, losses)
    losses.survived &= losses.kills > 0
    losses.seconds = round(time.monotonic() - began, 1)
    return losses


def lose_node(workshop: Workshop, seed: int) -> Losses:
    """Kill the raylet of the second node while it has a cell; its cells go on at the first."""
    chance, began = random.Random(f"{seed} node"), time.monotonic()  # noqa: S311
    losses = Losses()
    out = workshop.root / "lost-node"
    while not losses.retried and losses.sweeps < ROUNDS and losses.survived:
        with _two_nodes(workshop) as (address, raylet, environment):
            words = workshop.sweep(out, "--engine", "ray", "--address", address, *RETRIES)
            at = words.index("--workers")  # a cluster has its own
            command = _started(workshop, [*words[:at], *words[at + 2 :]], environment)

            def has_a_cell(raylet: int = raylet, command: Command = command) -> bool:
                busy = any(AT_WORK[1] in command_line(pid) for pid in descendants(raylet))
                return command.status is not None or (busy and bool(checkpoint_steps(out)))

            wait_for(has_a_cell, "a cell on the second node")
            time.sleep(chance.uniform(0, 0.3))
            if command.status is None:
                os.kill(raylet, signal.SIGKILL)
                losses.kills += 1
            _ended(workshop, command, out, losses)
    losses.survived &= losses.retried > 0
    losses.seconds = round(time.monotonic() - began, 1)
    return losses


def _killed_at_random(family: Callable[[], list[int]], command: Command, chance: random.Random) -> bool:
    """Kill a worker at a moment of its life, unless that is over sooner."""

    def at_work() -> list[int]:
        return [pid for pid in family() if any(name in command_line(pid) for name in AT_WORK)]

    wait_for(lambda: command.status is not None or bool(at_work()), "a worker at work")
    workers = at_work()
    if not workers:
        return False
    worker, moment = chance.choice(workers), time.monotonic() + chance.uniform(0, LIFE)
    wait_for(lambda: command.status is not None or time.monotonic() > moment, "the moment")
    if worker not in at_work():  # by now it may have ended, or have no packet
        return False
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: not is_alive(worker), "the end of a killed worker")
    return True


def _ended(workshop: Workshop, command: Command, out: Path, losses: Losses) -> None:
    """Compare what the sweep left, and clear it away."""
    status = command.wait()
    losses.sweeps += 1
    losses.retried += command.errors.count(GOES_ON)
    if status != 0:
        losses.survived, losses.complaint = False, command.errors[-500:]
        return
    losses.identical &= left_in(out) == _undisturbed(workshop)
    losses.survived &= losses.identical
    if losses.survived:
        shutil.rmtree(out)


def _undisturbed(workshop: Workshop) -> dict[str, str]:
    """What a sweep leaves that nobody disturbs; it is made once."""
    out = workshop.root / "undisturbed-sweep"
    if not (out / "ranking.json").exists():
        command = _started(workshop, workshop.sweep(out))
        if command.wait() != 0:
            raise RuntimeError(f"the undisturbed sweep failed: {command.errors}")
    return left_in(out)


def _started(workshop: Workshop, words: list[str], environment: dict[str, str] | None = None) -> Command:
    own = {"METAVIB_CACHE": str(workshop.cache), **(environment or {})}
    return Command(words, workshop.root / "said", own).start()


@contextlib.contextmanager
def _two_nodes(workshop: Workshop) -> Iterator[tuple[str, int, dict[str, str]]]:
    """A cluster of two nodes: its address, the pid of the second one's raylet, and what opens it."""
    said = workshop.root / "nodes.json"
    said.unlink(missing_ok=True)
    # As the engine's own Ray: on the loopback address alone, and not without a token.
    environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    with (workshop.root / "nodes.log").open("w") as log:
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, str(Path(__file__).with_name("two_nodes.py")), str(said)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**os.environ, **environment},
        )
    try:
        wait_for(lambda: said.exists() or process.poll() is not None, "two nodes of Ray")
        if not said.exists():
            raise RuntimeError(f"Ray did not start: {(workshop.root / 'nodes.log').read_text()[-500:]}")
        found = json.loads(said.read_text())
        yield found["address"], found["raylet"], environment
    finally:
        family = descendants(process.pid)
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pid in filter(is_alive, family):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
