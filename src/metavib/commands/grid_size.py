"""How large a grid is: said before it starts, and asked about on a terminal where it is large."""

from __future__ import annotations

import dataclasses
import math
import signal
import sys
from collections.abc import Sequence

from metavib.cells import Cell
from metavib.errors import UserError

LARGE = 50  # runs; beyond it a grid may be a slip, as `--seeds 90` for the one seed 90
MOST_SEEDS = 10_000
MOST_RUNS = 100_000


def seeds_of(text: str) -> list[int]:
    """The seeds that `--seeds` names: so many from 0, or a list; `90,` is a list of one."""
    parts = text.removesuffix(",").split(",")
    try:
        seeds = [int(part) for part in parts]
    except ValueError:
        seeds = [-1]
    listed = "," in text
    if min(seeds) < 0 or (not listed and not 1 <= seeds[0] <= MOST_SEEDS):
        raise UserError(
            f"--seeds {text} will not do: it takes how many, from 1 to {MOST_SEEDS:,}, or a list as 3,5,8. "
            "For the one seed 90 give --seed 90."
        )
    return seeds if listed else list(range(seeds[0]))


def check_size(*choices: Sequence[object]) -> None:
    """Refuse more runs than anybody trains, before they are all written down."""
    count = math.prod(map(len, choices))
    if count > MOST_RUNS:
        raise UserError(f"this grid has {count:,} runs, and {MOST_RUNS:,} is the limit: name fewer.")


def in_words(cells: Sequence[Cell]) -> str:
    """What the runs are made of: "90 seeds x 4 targets = 360 runs"."""
    runs = "1 run" if len(cells) == 1 else f"{len(cells):,} runs"
    experiments = [cell.experiment for cell in cells]
    counts = {
        "seeds": len({one.seed for one in experiments}),
        "targets": len({one.target for one in experiments}),
        "algorithms": len({one.algorithm for one in experiments}),
    }
    variants = {dataclasses.replace(one, seed=0, target="").identity() for one in experiments}
    if len(variants) != counts["algorithms"]:
        del counts["algorithms"]
        counts["algorithms and settings"] = len(variants)
    factors = [f"{count:,} {name}" for name, count in counts.items() if count > 1]
    if math.prod(counts.values()) != len(cells) or not factors:
        return runs
    return f"{' x '.join(factors)} = {runs}"


def confirm(question: str, *, yes: bool, instead: str) -> None:
    """Ask before much begins. Where there is no terminal nobody could answer, and it begins."""
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    former = signal.signal(signal.SIGINT, signal.default_int_handler)  # there is no step to wait for
    try:
        answer = sys.stdin.readline()
    finally:
        signal.signal(signal.SIGINT, former)
    if answer.strip().lower() not in ("y", "yes"):
        raise UserError(f"nothing was trained. {instead}")
