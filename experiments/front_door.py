"""How long it takes a newcomer: from `git clone` to the demo's table and the first prediction.

    python experiments/front_door.py results/front-door.json

The last commit is cloned into an empty folder, and the commands of the README run there in turn, without pip's
cache. Two more calls say how long the installed command takes for one digit, and for its help. The machine should
have nothing else to do: the record keeps its load.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from metavib.core.cores import allowed
from metavib.runs.provenance import git_revision

ROOT = Path(__file__).parents[1]
MODEL = "runs/demo/metavib-0"
METAVIB = ".venv/bin/metavib"
# What is typed, in the order of the README. `make demo` does both of its steps; here each has its time.
TO_A_PREDICTION = {
    "git clone": ["git", "clone", "--quiet", str(ROOT), "."],
    "make .venv/.core": ["make", "--silent", f"PYTHON={sys.executable}", ".venv/.core"],
    "make demo": ["make", "--silent", f"PYTHON={sys.executable}", "demo"],
    "metavib predict RUN FOLDER": [METAVIB, "predict", MODEL, "runs/demo/examples"],
}
AFTERWARDS = {
    "metavib predict RUN DIGIT": [METAVIB, "predict", MODEL, "runs/demo/examples/a-7-at-0-degrees.png"],
    "metavib --help": [METAVIB, "--help"],
}


def seconds_of(name: str, command: list[str], folder: Path, environment: dict[str, str]) -> float:
    """How long a step takes. One that fails ends the measurement, with what it said."""
    started = time.perf_counter()
    done = subprocess.run(  # noqa: S603
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    seconds = round(time.perf_counter() - started, 2)
    if done.returncode:
        raise SystemExit(f"{name} failed ({' '.join(command)}):\n{done.stdout[-2000:]}")
    print(f"{name}: {seconds} s", flush=True)
    return seconds


def of_a_newcomer(cache: Path) -> dict[str, str]:
    """The environment variables of somebody who has just arrived."""
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "METAVIB", "VIRTUAL"))
    }
    return own | {"METAVIB_CACHE": str(cache), "PIP_NO_CACHE_DIR": "1"}


def measured() -> dict[str, object]:
    """The record but for its command."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder, environment = Path(name) / "metavib", of_a_newcomer(Path(name) / "cache")
        folder.mkdir()
        steps = {key: seconds_of(key, words, folder, environment) for key, words in TO_A_PREDICTION.items()}
        calls = {key: seconds_of(key, words, folder, environment) for key, words in AFTERWARDS.items()}
    return {
        "revision": git_revision(),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "cores": allowed(),
        "load_average": round(load, 2),
        "steps": steps,
        "seconds_to_a_prediction": round(sum(steps.values()), 1),
        "calls": calls,
    }


def main() -> None:
    """Measure, and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("record", type=Path, help="where the record goes")
    arguments = parser.parse_args()
    record = {"command": f"python experiments/front_door.py {arguments.record}", **measured()}
    arguments.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
