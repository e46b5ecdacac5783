"""Runs on Rotated MNIST with DomainBed's network: its own train.py one after another, and our grid, by wall clock.

    python experiments/domainbed_race.py results/domainbed-race.json --domainbed DOMAINBED --data DIR [--timed 2]

DomainBed's runs are alike, so some are timed, whole commands from start to end, and stand for all. Ours is one
command for all of them. Both train ERM by DomainBed's settings (64 images of each training domain, Adam at .001)
and end with the accuracies of all domains that they look at.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from metavib.runs.provenance import git_revision

TARGETS = 6
TRAIN = Path(__file__).with_name("domainbed_train.py")


def domainbed_seconds(
    source: Path, data: Path, steps: int, timed: int
) -> tuple[list[float], list[dict[str, Any]]]:
    """How long each of some runs took, and what DomainBed wrote at its end."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
    }
    seconds, ends = [], []
    with tempfile.TemporaryDirectory() as name:
        raw = Path(name, "data", "MNIST", "raw")
        raw.mkdir(parents=True)
        for path in (data / "mnist").glob("*.gz"):
            with gzip.open(path) as packed, (raw / path.stem).open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
        for number in range(timed):
            out = Path(name, f"run{number}")
            words = [sys.executable, str(TRAIN), "--algorithm", "ERM", "--dataset", "RotatedMNIST"]
            words += ["--data_dir", str(raw.parents[1]), "--output_dir", str(out), "--steps", str(steps)]
            words += ["--test_envs", str(number % TARGETS), "--skip_model_save"]
            started = time.monotonic()
            subprocess.run(words, check=True, env=environment, stdout=subprocess.DEVNULL)  # noqa: S603
            seconds.append(time.monotonic() - started)
            ends.append(json.loads((out / "results.jsonl").read_text().splitlines()[-1]))
    return seconds, ends


def our_seconds(
    data: Path, steps: int, seeds: int, further: list[str]
) -> tuple[float, dict[str, Any], list[str]]:
    """How long the grid took as a command, its table, and the command."""
    with tempfile.TemporaryDirectory() as name:
        words = [
            "train",
            "rotated-mnist",
            "--protocol",
            "domainbed",
            "--target",
            "all",
            "--seeds",
            str(seeds),
        ]
        words += [
            "--algorithm",
            "erm",
            "--backbone",
            "digits-domainbed",
            "--steps",
            str(steps),
            "--yes",
            "--json",
        ]
        settings = {
            "images_per_domain": 64,
            "domains_per_episode": 5,
            "learning_rate": 0.001,
            "schedule": "constant",
            "warmup": 0,
            "clip_norm": 0,
            "validation_share": 0.2,
            "validations": 3,
            "selection": "last",
        }
        words += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")] + further
        at = ["--data", str(data), "--out", str(Path(name, "runs"))]
        started = time.monotonic()
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-m", "metavib", *words, *at], check=True, stdout=subprocess.PIPE, text=True
        )
        return time.monotonic() - started, json.loads(done.stdout), words


def main() -> None:
    """Measure both, write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--domainbed", type=Path, required=True, help="the folder that holds domainbed/")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=4, help="of each of the six targets")
    parser.add_argument("--timed", type=int, default=2, help="runs of DomainBed that stand for all")
    args, further = parser.parse_known_args()
    runs = args.seeds * TARGETS
    ours, table, command = our_seconds(args.data, args.steps, args.seeds, further)
    print(f"{runs} runs of ours: {ours:.1f} s", file=sys.stderr, flush=True)
    record = {
        "command": "python experiments/domainbed_race.py results/domainbed-race.json "
        + " ".join(["--domainbed DOMAINBED --data DIR", *further]),
        "revision": git_revision(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "runs": runs,
        "steps": args.steps,
        "our_command": " ".join(["metavib", *command]),
        "our_seconds": ours,
        "our_table": table,
    }
    if args.timed:
        seconds, ends = domainbed_seconds(args.domainbed.resolve(), args.data, args.steps, args.timed)
        theirs = runs * sum(seconds) / len(seconds)
        record |= {
            "domainbed_seconds_a_run": seconds,
            "domainbed_seconds_a_step": [end["step_time"] for end in ends],
            "domainbed_accuracy": [{k: v for k, v in end.items() if k.endswith("_acc")} for end in ends],
            "domainbed_seconds": theirs,
            "faster": theirs / ours,
        }
        print(f"DomainBed: {theirs:.1f} s, {theirs / ours:.1f} times as long", file=sys.stderr)
    args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
