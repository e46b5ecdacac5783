"""The runs of a grid: several targets, seeds, algorithms or values of a setting; how many, and whether to go."""

import argparse
import copy
import dataclasses
import itertools
import math
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from metavib.core.errors import UserError, unknown_name
from metavib.data.sources.catalog import NAMES, open_dataset
from metavib.interfaces.cli.flags import data_root
from metavib.interfaces.cli.training.experiments import (
    NOTHING,
    absolute_if_path,
    assignment,
    configured,
    experiment_and_place,
)
from metavib.runs.cells import Cell
from metavib.runs.cross_validation import LEAVE_ONE_DOMAIN_OUT
from metavib.training.experiment import left_out, shared_out


def is_grid(arguments: argparse.Namespace) -> bool:
    """Whether the arguments name more than one run."""
    listed = [arguments.target or "", arguments.algorithm or "", *arguments.set]
    several = arguments.target == "all" or arguments.seeds is not None or any("," in text for text in listed)
    return several or arguments.select == LEAVE_ONE_DOMAIN_OUT


def steps_of(cells: Sequence[Cell]) -> int:
    """The steps of all runs together."""
    return sum(cell.experiment.training.steps for cell in cells)


def grid_of(arguments: argparse.Namespace) -> tuple[list[Cell], list[str]]:
    """The cells, and the names of the settings that vary between them."""
    # A configuration and the command that goes on with it say the same twice.
    values = [assignment(text) for text in dict.fromkeys(arguments.set)]
    varied = [name for name, text in values if "," in text]
    choices = [[(name, value.strip()) for value in text.split(",")] for name, text in values]
    named = [name.strip() for name in (arguments.algorithm or "").split(",") if name.strip()]
    algorithms = [None] if arguments.algorithm is None else named
    targets, seeds = _targets(arguments), _seeds(arguments)
    check_size(targets, algorithms, seeds, *choices)
    cells: dict[str, Cell] = {}  # by what decides them: beta=.1,0.1 is one run
    combined = itertools.product(targets, algorithms, seeds, itertools.product(*choices))
    for target, algorithm, seed, settings in combined:
        own = copy.copy(arguments)
        own.target, own.algorithm, own.seed, own.out = target, algorithm, seed, None
        mine = dict(settings)
        if algorithm is not None:
            mine = shared_out(mine, algorithm, named)
        own.set = [f"{name}={value}" for name, value in mine.items()]
        experiment, place = experiment_and_place(own)
        suffix = "".join(f"-{name}{value}" for name, value in mine.items() if name in varied)
        out = (Path(arguments.out) if arguments.out else place.parent) / (place.name + suffix)
        cells.setdefault(experiment.identity(), Cell(experiment, out))
    return list(cells.values()), varied


def _targets(arguments: argparse.Namespace) -> list[str | None]:
    """The targets that are named; "all" are those that are not left out, and a name with a comma may be one."""
    if arguments.target is None or ("," not in arguments.target and arguments.target != "all"):
        return [arguments.target]
    given = configured(arguments)
    name = arguments.dataset or given.get("dataset")
    if name is None:
        return [arguments.target]  # an error that `experiment_and_place` has words for
    dataset = open_dataset(
        str(absolute_if_path(name, NAMES)),
        data_root=data_root(arguments),
        protocol=arguments.protocol or given.get("protocol"),
        seed=0,
    )
    if arguments.target in dataset.domains:
        return [arguments.target]
    without = left_out(given.get("without") if arguments.without is None else arguments.without)
    domains = [domain for domain in dataset.domains if domain not in without]
    targets = list(domains) if arguments.target == "all" else arguments.target.split(",")
    for target in targets:
        if target not in (*domains, NOTHING):  # said before the others are trained
            raise unknown_name("target domain", target, [*domains, NOTHING])
    return targets


def _seeds(arguments: argparse.Namespace) -> Sequence[int | None]:
    """`--seeds 10` are 0 to 9, `--seeds 3,5` those two; None is the configuration file's own."""
    if arguments.seeds is None:
        given = configured(arguments)
        if arguments.seed is None and given.get("seed") is None:
            arguments.seed = 0  # of a grid, so that the same command goes on with the same runs
        return [arguments.seed]
    if arguments.seed is not None:
        raise UserError("--seed and --seeds cannot be given together.")
    return seeds_of(arguments.seeds)


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
            f"--seeds must be a number of seeds from 1 to {MOST_SEEDS:,}, or a list as 3,5,8, not {text}. "
            "For the one seed 90 give --seed 90."
        )
    return seeds if listed else list(range(seeds[0]))


def check_size(*choices: Sequence[object]) -> None:
    """Refuse more runs than anybody trains, before they are all written down."""
    count = math.prod(map(len, choices))
    if count > MOST_RUNS:
        raise UserError(f"this grid has {count:,} runs, and {MOST_RUNS:,} is the limit: name fewer.")


def size_in_words(cells: Sequence[Cell]) -> str:
    """The number of runs by factors: "90 seeds x 4 targets = 360 runs"."""
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


def ask_to_begin(arguments: argparse.Namespace, runs: int, instead: str, up_to: str = "") -> None:
    """Ask whether to begin where there are many runs. The command that goes on need not ask again."""
    if runs > LARGE:
        confirm(f"Train {up_to}{runs:,} runs?", yes=arguments.yes, instead=instead)
        arguments.yes = True


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
