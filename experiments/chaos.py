"""Faults, for real: 100 SIGKILLs at random moments, lost workers and nodes, full and read-only disks, clocks that
jump, second processes.

    python experiments/chaos.py --out results/chaos.json

What is killed or left without room is called again, and must leave what an undisturbed process leaves, byte for
byte. `make chaos` calls this; `tests/test_chaos.py` is its short form.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is there: small work, and many processes

from faults import clocks, disks, lost_workers, two_processes
from faults.kills import KINDS, kill_at_random, prepare
from faults.workshop import open_workshop

COMMAND = "python experiments/chaos.py --out results/chaos.json"
# Most of them where most of the time is spent: 100 in all.
SHARES = {
    "training": 30,
    "training, three runs stacked": 18,
    "building the cache": 14,
    "writing checkpoints": 18,
    "reporting": 8,
    "sweeping": 10,
    "sweeping, on Ray": 2,
}


def main() -> int:
    """Try everything; the exit status says whether all of it was survived."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--share", type=float, default=1.0, help="of the kills (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (%(default)s)")
    parser.add_argument("--out", type=Path, help="the record")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="metavib-chaos-") as folder:
        record = chaos(Path(folder), arguments.share, arguments.seed)
    text = json.dumps(record, indent=2)
    print(text)
    if arguments.out:
        from metavib.core import atomic

        atomic.write_text(arguments.out, text + "\n")
    return 0 if record["survived"] else 1


def chaos(folder: Path, share: float, seed: int) -> dict[str, Any]:
    """All faults, and what they came to."""
    from metavib.runs.provenance import git_revision

    began = time.monotonic()
    revision = git_revision()
    workshop = open_workshop(folder)
    prepare(workshop)
    kills = {}
    for name, kind in KINDS.items():
        if not kind.possible:
            tell(f"{name}: not tried, {kind.needs} is not installed", last=True)
            continue
        kills[name] = kill_at_random(workshop, name, max(1, round(share * SHARES[name])), seed, tell)
        tell(f"{name}: {asdict(kills[name])}", last=True)
    sections = {
        "lost_workers": lost_workers.try_all(workshop, seed, lambda text: tell(text, last=True)),
        "disks": disks.try_all(workshop, lambda text: tell(text, last=True)),
        "clocks": clocks.try_all(workshop, lambda text: tell(text, last=True)),
        "two_processes": two_processes.try_all(workshop, lambda text: tell(text, last=True)),
    }
    tried = [one for section in sections.values() for one in section.values()]
    return {
        "command": COMMAND,
        "revision": revision,
        "seed": seed,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[1],  # of five minutes: more than the cores: others were at work too
        "seconds": round(time.monotonic() - began, 1),
        "survived": all(one.sound for one in kills.values())
        and all(one.get("survived", True) for one in tried),
        "kills": {name: asdict(tally) for name, tally in kills.items()},
        **sections,
    }


def tell(text: str, *, last: bool = False) -> None:
    """Where it stands."""
    if last or sys.stderr.isatty():
        print(text, end="\n" if last else "\x1b[K\r", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
