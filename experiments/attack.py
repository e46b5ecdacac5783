"""Hostile clients, on loopback: what a second, polite client notices, and what becomes of the server's memory.

    python experiments/attack.py --out results/attacks.json

Each attack has a server of its own (`metavib serve`, a small model of digits) and runs beside a client that sends
one PNG after the other; hostile models are given to a command. `--source` takes another checkout, which trains the
model too; `--as before` puts what was found in the record's other column. What the record has of other attacks
stays.
`tests/test_attack_suite.py` is the short form; the exit status is 1 where a promise was not kept.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the training of the small model

from attacks.catalog import ATTACKS
from attacks.hostile_models import FILES, try_files
from attacks.server import ROOT, small_model
from attacks.trial import try_one

ALL = (*ATTACKS, *FILES)


def main() -> int:
    """Try the attacks; the exit status says whether all promises were kept."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help=f"of attacks: {', '.join(ALL)} (all)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each attack (%(default)s)")
    parser.add_argument("--share", type=float, default=1.0, help="of the full sizes (%(default)s)")
    parser.add_argument("--source", type=Path, default=ROOT, help="the checkout that is served (this one)")
    parser.add_argument("--as", dest="column", default="after", choices=("before", "after"))
    parser.add_argument("--out", type=Path, help="the record")
    parser.add_argument("--no-stop", action="store_true", help="without the stop in the middle of an attack")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(ALL):
        parser.error(f"there is no attack {', '.join(sorted(unknown))}; there are {', '.join(ALL)}")
    record: dict[str, Any] = {"command": command_of(arguments), "before": {}, "after": {}}
    if arguments.out and arguments.out.exists():
        record |= json.loads(arguments.out.read_text())
    command = command_of(arguments)
    if not arguments.names and arguments.column == "after":
        record["command"] = command
    held = True
    with tempfile.TemporaryDirectory(prefix="metavib-attacks-") as folder:
        model = small_model(Path(folder), arguments.source)
        for name in arguments.names or ALL:
            found = tried(name, model, arguments) | {
                "command": command,
                "cores": os.cpu_count(),
                "load_average": os.getloadavg()[0],
                "revision": git_revision(arguments.source),
            }
            print(f"{name}: {json.dumps(found)}", file=sys.stderr, flush=True)
            record[arguments.column][name] = found
            held = held and found["held"]
            if arguments.out:
                from metavib.core import atomic

                atomic.write_text(arguments.out, json.dumps(record, indent=2) + "\n")
    return 0 if held else 1


def command_of(arguments: argparse.Namespace) -> str:
    """What has to be typed to make these rows again; another checkout is called OLD."""
    words = ["python experiments/attack.py", *map(shlex.quote, arguments.names)]
    words.append(f"--seconds {arguments.seconds:g}")
    if arguments.share != 1:
        words.append(f"--share {arguments.share:g}")
    if arguments.source != ROOT:
        words.append("--source OLD")
    if arguments.column != "after":
        words.append(f"--as {arguments.column}")
    if arguments.no_stop:
        words.append("--no-stop")
    return " ".join([*words, "--out results/attacks.json"])


def tried(name: str, model: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """What became of one attack, for the record."""
    if name in FILES:
        return try_files(name, model, arguments.source)
    seconds, share = arguments.seconds, arguments.share
    trial = try_one(name, model, arguments.source, seconds, share, stop=not arguments.no_stop)
    return trial.record() | {"what": ATTACKS[name].what, "seconds": seconds, "share": share}


def git_revision(source: Path) -> str:
    """Of the checkout that was attacked."""
    command = ["git", "-C", str(source), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603


if __name__ == "__main__":
    sys.exit(main())
