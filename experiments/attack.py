"""Hostile clients, on loopback: what a second, polite client notices, and what becomes of the server's memory.

    python experiments/attack.py --out results/attacks.json

Each attack has a server of its own (`metavib serve`, a small model of digits) and runs beside a client that sends
one PNG after the other. `--source` serves another checkout, `--as before` puts what was found in the record's
other column. `tests/test_attack_suite.py` is the short form; the exit status is 1 where a promise was not kept.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the training of the small model

from attacks.catalog import ATTACKS
from attacks.server import ROOT, small_model
from attacks.trial import try_one

COMMAND = "python experiments/attack.py --out results/attacks.json"


def main() -> int:
    """Try the attacks; the exit status says whether all promises were kept."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help=f"of attacks: {', '.join(ATTACKS)} (all)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each attack (%(default)s)")
    parser.add_argument("--share", type=float, default=1.0, help="of the full sizes (%(default)s)")
    parser.add_argument("--source", type=Path, default=ROOT, help="the checkout that is served (this one)")
    parser.add_argument("--as", dest="column", default="after", choices=("before", "after"))
    parser.add_argument("--out", type=Path, help="the record")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(ATTACKS):
        parser.error(f"there is no attack {', '.join(sorted(unknown))}; there are {', '.join(ATTACKS)}")
    record = {"command": COMMAND, "before": {}, "after": {}}
    if arguments.out and arguments.out.exists():
        record |= json.loads(arguments.out.read_text())
    held = True
    with tempfile.TemporaryDirectory(prefix="metavib-attacks-") as folder:
        model = small_model(Path(folder))
        for name in arguments.names or ATTACKS:
            trial = try_one(name, model, arguments.source, arguments.seconds, arguments.share)
            found = trial.record() | {
                "what": ATTACKS[name].what,
                "seconds": arguments.seconds,
                "share": arguments.share,
                "cores": os.cpu_count(),
                "load_average": os.getloadavg()[0],
            }
            print(f"{name}: {json.dumps(found)}", file=sys.stderr, flush=True)
            record[arguments.column][name] = found
            held = held and trial.held
            if arguments.out:
                from metavib import atomic

                atomic.write_text(arguments.out, json.dumps(record, indent=2) + "\n")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
