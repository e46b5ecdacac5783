"""Two revisions of `metavib serve` in turns on one machine: images a second, latency and CPU time an image.

    git worktree add ../before REVISION
    python experiments/serving_compare.py MODEL ../before --out results/serving-compare.json

Both servers serve the same model, made by the earlier revision. One is stopped (SIGSTOP) while the other one is
measured. Ratios are those of one round; the middle one of all rounds counts.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WAYS = ("server, an image a request", "server, arrays of 64 images")


def main() -> int:
    """Measure in turns, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a model or run directory that both revisions can load")
    parser.add_argument("before", type=Path, help="a checkout of the earlier revision")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement (%(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="the record")
    arguments = parser.parse_args()
    trees = {"before": arguments.before.resolve(), "after": HERE.parent}
    servers = {name: started(arguments.model, tree) for name, tree in trees.items()}
    rounds: list[dict[str, dict[str, Any]]] = []
    try:
        for process, _ in servers.values():
            process.send_signal(signal.SIGSTOP)
        for number in range(arguments.rounds + 1):  # the first one warms up
            found = {way: in_turn(servers, way, arguments, number) for way in WAYS}
            rounds.extend([found] if number else [])
            print(f"round {number} of {arguments.rounds}", file=sys.stderr, flush=True)
    finally:
        for process, _ in servers.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
            process.wait(40)
    record = {
        "command": "python experiments/serving_compare.py MODEL BEFORE --out results/serving-compare.json",
        "revisions": {name: revision(tree) for name, tree in trees.items()},
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[1],
        "clients": 64,
        "rounds": len(rounds),
        "seconds": arguments.seconds,
        "ways": {way: summary([one[way] for one in rounds]) for way in WAYS},
    }
    arguments.out.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))
    return 0


def started(model: str, tree: Path) -> tuple[subprocess.Popen[str], str]:
    """A server of this checkout's code, and its address."""
    command = [sys.executable, "-m", "metavib", "serve", model, "--port", "0", "--json"]
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)  # noqa: S603
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())["address"]


def in_turn(
    servers: dict[str, tuple[subprocess.Popen[str], str]],
    way: str,
    arguments: argparse.Namespace,
    number: int,
) -> dict[str, Any]:
    """Both servers by one way of asking; who comes first changes from round to round."""
    found = {}
    for name in sorted(servers, reverse=bool(number % 2)):
        process, address = servers[name]
        process.send_signal(signal.SIGCONT)
        command = [sys.executable, str(HERE / "serving_load.py"), "digits", arguments.model]
        command += ["--clients-of", address, "--server", str(process.pid), "--way", way]
        command += ["--seconds", str(arguments.seconds)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603
        found[name] = json.loads(done.stdout)
        process.send_signal(signal.SIGSTOP)
    return found


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The middle of each measure, and the middle of the ratios after / before."""

    def measures(own: dict[str, Any]) -> dict[str, float]:
        return {
            "images_a_second": own["images_a_second"],
            "cpu_ms_an_image": own["cpu_ms_an_image"],
            "p50_ms": own["ms"]["p50"],
            "p99_ms": own["ms"]["p99"],
        }

    both = [{name: measures(own[name]) for name in ("before", "after")} for own in rounds]
    middle = {
        name: {what: statistics.median(own[name][what] for own in both) for what in both[0][name]}
        for name in ("before", "after")
    }
    ratios = {
        what: statistics.median(own["after"][what] / own["before"][what] for own in both)
        for what in both[0]["after"]
    }
    errors = sum(own[name]["errors"] for own in rounds for name in ("before", "after"))
    return middle | {"after / before": ratios, "errors": errors}


def revision(tree: Path) -> str:
    """What git calls the checkout."""
    done = subprocess.run(  # noqa: S603
        ["git", "-C", str(tree), "describe", "--always", "--dirty", "--abbrev=12"],  # noqa: S607
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
