"""`make fuzz`: bad input by the thousand, in bounded time; the counts go to results/fuzz.json.

    python experiments/fuzz.py --seconds 540 --seed 0 --record results/fuzz.json

Every kind of input has a process of its own, so that even a crash is only a failure of its kind. What the judge
calls a failure is printed with its call; the same seed makes the same cases, as many as there is time for.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import count as numbers_from
from pathlib import Path
from typing import Any

from fuzzing.judge import Judge, Verdicts, until
from fuzzing.kinds import KINDS
from fuzzing.place import Place, made_place, stopped_at_once

import metavib
from metavib.runs.provenance import git_revision

ALL = ("command lines", *KINDS, "requests", "processes")
# Of the time: models, images and weights are quick, a process takes seconds; a server is what strangers reach.
SHARES = {"command lines": 3, "configurations": 2, "runs": 2, "requests": 6, "processes": 3}
ROUND_SECONDS = 720.0  # of one seed, where there are several; every kind takes ten seconds to begin
ADDRESS_SPACE = 8 << 30  # beyond what torch maps: what asks for more is told that there is no memory


def main() -> int:
    """Fuzz, print, record. The status is 1 where anything failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=540.0, help="for everything (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--cases",
        type=int,
        default=0,
        help="further seeds, twelve minutes each, until there are so many cases",
    )
    parser.add_argument("--jobs", type=int, default=1, help="seeds side by side, with --cases (%(default)s)")
    parser.add_argument("--count", type=int, default=100_000, help="of each kind, at most")
    parser.add_argument(
        "--kinds", nargs="+", default=list(ALL), choices=ALL, metavar="KIND", help=", ".join(ALL)
    )
    parser.add_argument("--here", action="store_true", help="all kinds in this process")
    parser.add_argument("--record", help="where the counts go")
    parser.add_argument(
        "--go-on", action="store_true", help="with --cases: add to the record, from the seed after its last"
    )
    arguments = parser.parse_args()
    if arguments.here:
        found = fuzzed(arguments.kinds, arguments.seed, arguments.count, arguments.seconds)
    else:
        found = in_rounds(arguments) if arguments.cases else in_processes(arguments, arguments.seed)
    show(found)
    write(arguments, found)
    return 1 if found["failed"] else 0


def write(arguments: argparse.Namespace, found: dict[str, Any]) -> None:
    """The record, with the command that makes it."""
    if not arguments.record:
        return
    words = ["--seconds", f"{arguments.seconds:g}", "--seed", str(arguments.seed)]
    for name in ("cases", "jobs"):
        words += [f"--{name}", str(getattr(arguments, name))] if arguments.cases else []
    words = sys.argv[1:] if arguments.here else words
    record = {"command": " ".join(["python", "experiments/fuzz.py", *words]), **found}
    new = Path(f"{arguments.record}.new")
    new.write_text(json.dumps(record, indent=1) + "\n")
    new.replace(arguments.record)


def in_rounds(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seed after seed until there are enough cases, or the time is over; the counts of all rounds together.

    The record is written after every round, so that it holds what was reached when this is stopped.
    """
    deadline = time.monotonic() + arguments.seconds
    whole: dict[str, Any] = {"seed": arguments.seed, "revisions": {}, "seeds": [], **_nothing()}
    if arguments.go_on:
        former = json.loads(Path(arguments.record).read_text())
        whole = {name: former[name] for name in whole}
    seeds = numbers_from(max([arguments.seed - 1, *whole["seeds"]]) + 1)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        running: set[Future[dict[str, Any]]] = set()
        enough = whole["cases"] >= arguments.cases
        while running or not enough:
            while not enough and len(running) < arguments.jobs:
                left = min(ROUND_SECONDS, deadline - time.monotonic())
                running.add(pool.submit(in_processes, arguments, next(seeds), left))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for found in (each.result() for each in done):
                _add(whole, found)
                enough |= not found["cases"]
            enough |= whole["cases"] >= arguments.cases or time.monotonic() >= deadline
            print(f"{whole['cases']} cases, {whole['failed']} failed", file=sys.stderr)
            write(arguments, whole)
    return whole


def _nothing() -> dict[str, Any]:
    return {"cases": 0, "failed": 0, "kinds": {}, "failures": []}


def _add(whole: dict[str, Any], found: dict[str, Any]) -> None:
    """Count a round of one seed."""
    whole["seeds"].append(found["seed"])
    cases_of, revision = whole["revisions"], str(found["revision"])
    cases_of[revision] = cases_of.get(revision, 0) + found["cases"]
    for name in ("cases", "failed", "failures"):
        whole[name] += found[name]
    for kind, own in found["kinds"].items():
        so_far = whole["kinds"].setdefault(kind, {"cases": 0, "endings": {}})
        so_far["cases"] += own["cases"]
        for ending, count in own["endings"].items():
            so_far["endings"][ending] = so_far["endings"].get(ending, 0) + count


def in_processes(arguments: argparse.Namespace, seed: int, time_for_all: float = 0.0) -> dict[str, Any]:
    """Each kind in a process of its own, one after the other; their counts together."""
    whole: dict[str, Any] = {"revision": git_revision(), "seed": seed, **_nothing()}
    time_for_all = time_for_all or arguments.seconds
    total = sum(SHARES.get(kind, 1) for kind in arguments.kinds)
    for kind in arguments.kinds:
        seconds = time_for_all * SHARES.get(kind, 1) / total
        with tempfile.TemporaryDirectory() as folder:
            record = Path(folder) / "record.json"
            command = [sys.executable, __file__, "--here", "--kinds", kind, "--seed", str(seed)]
            command += ["--count", str(arguments.count), "--seconds", str(seconds), "--record", str(record)]
            ended = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)  # noqa: S603
            if record.exists():
                part = json.loads(record.read_text())
                whole["cases"] += part["cases"]
                whole["failed"] += part["failed"]
                whole["kinds"] |= part["kinds"]
                whole["failures"] += part["failures"]
            else:
                whole["failed"] += 1
                what = (
                    signal.strsignal(-ended.returncode)
                    if ended.returncode < 0
                    else f"status {ended.returncode}"
                )
                whole["failures"].append({"kind": kind, "wrong": [f"the process ended by {what}"]})
        print(f"seed {seed}, {kind}: {whole['kinds'].get(kind)}", file=sys.stderr)
    return whole


def fuzzed(kinds: list[str], seed: int, count: int, seconds: float) -> dict[str, Any]:
    """These kinds in this process."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with made_place() as place:
        judge = Judge(place.root)
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + ADDRESS_SPACE,) * 2)
        total = sum(SHARES.get(kind, 1) for kind in kinds)
        deadline = time.monotonic()
        for kind in kinds:
            deadline += seconds * SHARES.get(kind, 1) / total
            drawn = random.Random(f"{seed} {kind}")  # noqa: S311
            if kind == "processes":
                processes(judge, place, drawn, count, deadline)
                continue
            if kind == "requests":
                from fuzzing.requests import requests

                requests(judge, place, drawn, count, deadline)
                continue
            with stopped_at_once(after=3):
                if kind == "command lines":
                    from fuzzing.command_lines import command_lines

                    command_lines(judge, place, seed, count, deadline)
                    continue
                for _ in until(deadline, count):
                    KINDS[kind](judge, place, drawn)
    return record_of(judge.verdicts, seed)


class _Started:
    """Stands for a judge: what a kind would call here is called in a process of its own."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge

    def call(self, kind: str, arguments: list[str], **_: Any) -> None:
        """Start it."""
        if not any("\0" in argument for argument in arguments):  # no process can be given such
            here = str(Path(metavib.__file__).parents[1])  # and not another one that is installed
            self.judge.start("processes", arguments, dict(os.environ) | {"PYTHONPATH": here})


def processes(judge: Judge, place: Place, drawn: random.Random, count: int, deadline: float) -> None:
    """Cases of all other kinds as real processes, with nothing patched; without those that could last."""
    short = [kind for name, kind in KINDS.items() if name not in ("configurations", "runs")]
    for number in until(deadline, count):
        short[number % len(short)](_Started(judge), place, drawn)  # type: ignore[arg-type]


def record_of(verdicts: Verdicts, seed: int) -> dict[str, Any]:
    """Plain counts."""
    kinds = {
        kind: {"cases": n, "endings": dict(verdicts.endings[kind])} for kind, n in verdicts.cases.items()
    }
    cases = sum(verdicts.cases.values())
    failures = {"failed": verdicts.failed, "failures": verdicts.failures}
    return {"revision": git_revision(), "seed": seed, "cases": cases, "kinds": kinds, **failures}


def show(found: dict[str, Any]) -> None:
    """Counts, and every failure with its call."""
    for failure in found["failures"]:
        print(json.dumps(failure, indent=1))
    for kind, own in found["kinds"].items():
        endings = ", ".join(f"{ending}: {count}" for ending, count in sorted(own["endings"].items()))
        print(f"{kind:16} {own['cases']:6}   {endings}")
    print(f"{found['cases']} cases, {found['failed']} failed")


if __name__ == "__main__":
    sys.exit(main())
