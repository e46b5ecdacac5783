"""Whether revisions train to the same bytes: sha256 of models and logs, old against new.

    python experiments/same_bytes.py db21c1e HEAD --record results/same-bytes.json

Two cells of the demo's table, a run, a stacked grid, and a run that Ctrl-C interrupts.
Each revision is taken out of git into a folder of its own and called as a user does, on one thread of a CPU. A
change of structure alone must leave every hash as it was.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
CELL = ["train", "rotated-digits", "--target", "75", "--device", "cpu", "--threads", "1"]
TRAIN = [*CELL, "--algorithm", "metavib", "--steps", "6"]
for _setting in ("images_per_domain=16", "repeats=2", "validations=2"):
    TRAIN += ["--set", _setting]
GRID = [*TRAIN, "--seeds", "2", "--batch", "2", "--yes", "--out", "grid"]
DEMO = [*CELL, "--preset", "demo", "--seed", "0"]
DEMO_ERM = [*DEMO, "--algorithm", "erm", "--out", "demo-erm"]
# The demo has `roles = every`, which sums in another order since then (CHANGELOG).
DEMO_METAVIB = [*DEMO, "--algorithm", "metavib", "--set", "roles=one", "--set", "record_information=10"]
DEMO_METAVIB += ["--out", "demo-metavib"]
ALONE = [*TRAIN, "--seed", "0", "--out", "run"]
RESUMED = [*TRAIN, "--seed", "0", "--checkpoint-seconds", "0", "--out", "resumed"]


def main() -> int:
    """Compare, print, record. The status is 1 where bytes differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revisions", nargs="+")
    parser.add_argument("--record", help="where the hashes go")
    arguments = parser.parse_args()
    names = [_git("rev-parse", "--short=12", revision).decode().strip() for revision in arguments.revisions]
    found = {}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = hashes_of(name, Path(folder))
        print(name, json.dumps(found[name], indent=1))
    same = all(hashes == found[names[0]] for hashes in found.values())
    print("the same bytes" if same else "the bytes differ")
    if arguments.record:
        command = " ".join(["python experiments/same_bytes.py", *arguments.revisions])
        commands = {
            "demo": DEMO_ERM,
            "demo of metavib": DEMO_METAVIB,
            "run": ALONE,
            "grid": GRID,
            "resumed": RESUMED,
        }
        record = {"command": command, "commands": {what: " ".join(words) for what, words in commands.items()}}
        record |= {"same": same, "sha256": found}
        Path(arguments.record).write_text(json.dumps(record, indent=1) + "\n")
    return 0 if same else 1


def hashes_of(revision: str, folder: Path) -> dict[str, str]:
    """Train by this revision in an empty folder; the hash of every model and log."""
    with tarfile.open(fileobj=io.BytesIO(_git("archive", revision, "src"))) as archive:
        archive.extractall(folder / "tree", filter="data")
    work = folder / "work"
    work.mkdir()
    environment = os.environ | {
        "PYTHONPATH": str(folder / "tree" / "src"),
        "METAVIB_CACHE": str(folder / "cache"),
    }

    def start(words: list[str]) -> subprocess.Popen[bytes]:
        nowhere = subprocess.DEVNULL
        command = [sys.executable, "-m", "metavib", *words]
        return subprocess.Popen(command, cwd=work, env=environment, stdout=nowhere, stderr=nowhere)  # noqa: S603

    def run(words: list[str]) -> None:
        if status := start(words).wait():
            raise SystemExit(f"{revision}: metavib {' '.join(words)} ended with status {status}")

    run(DEMO_ERM)
    run(DEMO_METAVIB)
    run(ALONE)
    run(GRID)
    interrupted = start(RESUMED)
    while interrupted.poll() is None and not list(work.glob("resumed/checkpoints/*.json")):
        time.sleep(0.002)
    interrupted.send_signal(signal.SIGINT)
    if interrupted.wait() != 130:
        raise SystemExit(f"{revision}: the run ended before it was interrupted")
    run(RESUMED)
    files = [
        path
        for name in ("model.safetensors", "metrics.jsonl", "information.jsonl")
        for path in work.rglob(name)
    ]
    return {
        str(path.relative_to(work)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)
    }


def _git(*words: str) -> bytes:
    return subprocess.check_output(["git", "-C", str(ROOT), *words])  # noqa: S603, S607


if __name__ == "__main__":
    sys.exit(main())
