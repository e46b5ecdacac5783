"""`metavib train` with several targets, seeds, algorithms or values of a setting: a grid of runs."""

from __future__ import annotations

import argparse
import contextlib
import copy
import itertools
import shlex
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from metavib.capacity import estimate
from metavib.cells import Cell
from metavib.class_accuracy import never_right, rows_of_run
from metavib.commands import grid_size
from metavib.commands.outcome import expected_in_words
from metavib.commands.train import (
    NOTHING,
    absolute_if_path,
    assignment,
    configured,
    expected_of,
    experiment_and_place,
    in_words,
    selected_by,
    stop_requested,
)
from metavib.cross_validation import LEAVE_ONE_DOMAIN_OUT, Choice, choose, question
from metavib.data.catalog import NAMES, open_dataset
from metavib.device import resolve_device
from metavib.errors import UserError, unknown_name
from metavib.expectation import record_expectation
from metavib.experiment import left_out, shared_out
from metavib.grid import Done, run_grid
from metavib.run_directory import RunDirectory
from metavib.runner import Surroundings
from metavib.terminal import (
    Bar,
    counting_bar,
    mean_and_deviation,
    print_json,
    print_result,
    say,
    table,
)
from metavib.trainer import Progress, Stopped


def is_grid(arguments: argparse.Namespace) -> bool:
    """Whether the arguments name more than one run."""
    listed = [arguments.target or "", arguments.algorithm or "", *arguments.set]
    several = arguments.target == "all" or arguments.seeds is not None or any("," in text for text in listed)
    return several or arguments.select == LEAVE_ONE_DOMAIN_OUT


def run(arguments: argparse.Namespace) -> int:
    """Train every run of the grid, and print the table of what was measured."""
    if arguments.batch is not None and arguments.batch < 1:
        raise UserError("--batch takes a whole number from 1.")
    cells, varied = grid_of(arguments)
    resolve_device(arguments.device)  # an error comes before anything is said
    batch = 1 if arguments.no_batch else arguments.batch
    expected = expected_of_cells(arguments, cells)
    try:
        if arguments.select == LEAVE_ONE_DOMAIN_OUT:
            cells, done = run_chosen(arguments, cells, varied, batch)
        else:
            say(f"{grid_size.in_words(cells)}.")
            with working(arguments, "training", cells) as surroundings:
                agree(arguments, cells, surroundings, batch)
                done = run_grid(cells, surroundings, batch=batch)
    except Stopped as stopped:
        say(f"metavib: {stopped}; the runs are kept. To go on: {resume_command(arguments)}")
        return 130
    done = [with_expectation(one, expected.get(one.cell.out)) for one in done]
    show_tables(done, varied)
    failed = [one for one in done if one.results is None]
    first = next((one.results for one in done if one.results), None)
    if first:
        chosen = f"settings by {LEAVE_ONE_DOMAIN_OUT}; " if arguments.select == LEAVE_ONE_DOMAIN_OUT else ""
        print_result(
            f"({chosen}{selected_by(first)}; protocol: {first['protocol']}; runs in {cells[0].out.parent})"
        )
    if arguments.json:
        runs = [one.results | {"run": str(one.cell.out)} for one in done if one.results is not None]
        missing = [{"run": str(one.cell.out), "why": one.failure} for one in failed]
        print_json({"runs": runs, "failed": missing})
    if failed:
        say(
            f"metavib: {len(failed)} of {len(done)} runs broke down and have no results; the lines above say why."
        )
        return 2
    return 0


def expected_of_cells(
    arguments: argparse.Namespace, cells: Sequence[Cell]
) -> dict[Path, dict[str, Any] | None]:
    """What `--measured-by` says of each run that holds nothing out; an error where all hold a domain out."""
    final = [cell for cell in cells if cell.experiment.target is None] or cells
    return {cell.out: expected_of(arguments, cell.experiment) for cell in final}


def with_expectation(done: Done, expected: dict[str, Any] | None) -> Done:
    """A run with what to expect of a new domain in its results and its model card."""
    if expected is None or done.results is None:
        return done
    return replace(done, results=record_expectation(RunDirectory(done.cell.out), expected))


def show_tables(done: Sequence[Done], varied: Sequence[str]) -> None:
    """What was measured: on unseen domains, and on source validation where nothing was held out."""
    held_out = [one for one in done if one.cell.experiment.target is not None]
    if held_out:
        print_result("Accuracy on the unseen domain, %, mean and deviation over seeds:")
        print_result(results_table(held_out, varied, "accuracy"))
        print_result("\nCalibration error (ECE) on the unseen domain, %:")
        print_result(results_table(held_out, varied, "ece"))
    final = [one for one in done if one.cell.experiment.target is None]
    if final:
        print_result(
            "\nNothing was held out; accuracy on source validation, %, mean and deviation over seeds:"
        )
        print_result(results_table(final, varied, "accuracy", "source_validation"))
    for one in final:
        if one.results is not None and "expected" in one.results:
            print_result(
                f"{one.cell.out}: expected on a new domain: {expected_in_words(one.results['expected'])}."
            )
    for one in done:
        warning = None if one.results is None else never_right(rows_of_run(one.results))
        if warning:
            say(f"warning: {one.cell.out.name}: {warning}.")


@contextlib.contextmanager
def working(arguments: argparse.Namespace, what: str, cells: Sequence[Cell]) -> Iterator[Surroundings]:
    """What the runs need, with a bar over the steps of all of them."""
    total = sum(cell.experiment.training.steps for cell in cells)
    with stop_requested() as stop, counting_bar("reading images") as reading, Bar(what, total) as bar:

        def show(progress: Progress) -> None:
            bar.update(progress.step, in_words(progress), worked=progress.worked)

        yield Surroundings(
            device=resolve_device(arguments.device),
            data_root=Path(arguments.data) if arguments.data else None,
            skip_bad=arguments.skip_bad,
            checkpoint_seconds=arguments.checkpoint_seconds,
            stop=stop,
            reading=reading,
            show=show,
            say=bar.say,
            threads=arguments.threads,
        )


def agree(
    arguments: argparse.Namespace, cells: Sequence[Cell], surroundings: Surroundings, batch: int | None
) -> None:
    """Say how long the runs will take, and how much memory, before the first begins; ask where they are many."""
    with counting_bar("probing kinds of runs") as probed:
        plan = estimate(cells, replace(surroundings, stop=lambda: False), batch=batch, probed=probed)
    surroundings.say(plan.in_words())
    left = plan.runs - plan.finished
    if left <= grid_size.LARGE:
        return
    seeds = arguments.seeds or ""
    one = f"For one run with seed {seeds}: --seed {seeds}. " if seeds.isdecimal() else ""
    instead = f"{one}Name fewer of what there are many of, or skip this question with --yes."
    grid_size.confirm(f"Train {left:,} runs?", yes=arguments.yes, instead=instead)
    arguments.yes = True  # the command that goes on need not ask again


def run_chosen(
    arguments: argparse.Namespace, cells: Sequence[Cell], varied: Sequence[str], batch: int | None
) -> tuple[list[Cell], list[Done]]:
    """Of the values that a setting was given, the best for each target by the source domains alone; trained."""
    if not varied:
        raise UserError(
            f"there is nothing to choose for {LEAVE_ONE_DOMAIN_OUT}: give a setting several values, "
            "as --set beta=.001,.01."
        )
    asked: dict[tuple[str | None, str, int], list[Cell]] = {}
    for cell in cells:
        key = (cell.experiment.target, cell.experiment.algorithm, cell.experiment.seed)
        asked.setdefault(key, []).append(cell)
    root = Path(arguments.data) if arguments.data else None
    questions = [question(candidates, root) for candidates in asked.values()]
    folds = [fold for one in questions for fold in one.all_folds]
    say(f"{len(folds)} runs on source domains to choose by, then {len(questions)}.")
    with working(arguments, "choosing", folds) as surroundings:
        agree(arguments, [*folds, *(some[0] for some in asked.values())], surroundings, batch)
        choices = choose(questions, surroundings, batch=batch)
    found = [one for one in choices if isinstance(one, Choice)]
    for (target, algorithm, seed), one in zip(asked, choices, strict=True):
        if isinstance(one, Choice):
            held_out = "nothing held out" if target is None else f"{target!r} unseen"
            print_result(f"{algorithm}, {held_out}, seed {seed}: {choice_in_words(one)}")
    chosen = [one.chosen for one in found]
    with working(arguments, "training", chosen) as surroundings:
        done = {finished.cell: finished for finished in run_grid(chosen, surroundings, batch=batch)}
    for one in found:
        if done[one.chosen].results is not None:
            one.write()
    everything = [
        done[one.chosen] if isinstance(one, Choice) else Done(candidates[0], None, one)
        for candidates, one in zip(asked.values(), choices, strict=True)
    ]
    return [one.cell for one in everything], everything


def choice_in_words(choice: Choice) -> str:
    """What was chosen, and what the candidates had."""
    had = []
    for candidate in choice.record["candidates"]:
        settings = " ".join(f"{name.rpartition('.')[2]}={v}" for name, v in candidate["settings"].items())
        mean = "broke down" if candidate["mean"] is None else f"{100 * candidate['mean']:.2f} %"
        mark = ", chosen" if candidate["experiment"] == choice.record["chosen"] else ""
        had.append(f"{settings}: {mean}{mark}")
    return "; ".join(had) if had else "nothing to choose"


def grid_of(arguments: argparse.Namespace) -> tuple[list[Cell], list[str]]:
    """The cells, and the names of the settings that vary between them."""
    values = [assignment(text) for text in arguments.set]
    varied = [name for name, text in values if "," in text]
    choices = [[(name, value.strip()) for value in text.split(",")] for name, text in values]
    algorithms = _algorithms(arguments)
    targets, seeds = _targets(arguments), _seeds(arguments)
    grid_size.check_size(targets, algorithms, seeds, *choices)
    cells: dict[str, Cell] = {}  # by what decides them: beta=.1,0.1 is one run
    for target, algorithm, seed, settings in itertools.product(
        targets,
        algorithms,
        seeds,
        itertools.product(*choices),
    ):
        own = copy.copy(arguments)
        own.target, own.algorithm, own.seed, own.out = target, algorithm, seed, None
        mine = dict(settings)
        if algorithm is not None:
            mine = shared_out(mine, algorithm, [name for name in algorithms if name is not None])
        own.set = [f"{name}={value}" for name, value in mine.items()]
        experiment, place = experiment_and_place(own)
        suffix = "".join(f"-{name}{value}" for name, value in mine.items() if name in varied)
        out = (Path(arguments.out) if arguments.out else place.parent) / (place.name + suffix)
        cells.setdefault(experiment.identity(), Cell(experiment, out))
    return list(cells.values()), varied


def results_table(done: Sequence[Done], varied: Sequence[str], measure: str, part: str = "unseen") -> str:
    """Algorithms and settings x targets, each cell the mean over its seeds, with the mean of each row."""
    by_row: dict[str, dict[str, list[float]]] = {}
    named = {one.cell.out: one.cell.experiment.target or "all domains" for one in done}
    targets = list(dict.fromkeys(named.values()))
    for one in done:
        row = by_row.setdefault(_row_name(one.cell, varied), {})
        if one.results is not None and one.results[part] is not None:
            value = 100 * one.results[part][measure]["mean"]
            row.setdefault(named[one.cell.out], []).append(value)
    rows = []
    for name, cells in by_row.items():
        found = [cells.get(target, []) for target in targets]
        means = [statistics.mean(values) for values in found if values]
        mean = f"{statistics.mean(means):.2f}" if len(means) == len(targets) else "-"
        rows.append([name, *map(mean_and_deviation, found), mean])
    return table(["", *targets, "mean"], rows)


def resume_command(arguments: argparse.Namespace) -> str:
    """The command that goes on with the grid."""
    words = ["metavib", "train", *([arguments.dataset] if arguments.dataset else [])]
    names = (
        "config",
        "protocol",
        "target",
        "without",
        "algorithm",
        "preset",
        "steps",
        "seed",
        "seeds",
        "out",
        "backbone",
    )
    for name in (*names, "weights", "select", "average", "record_information", "data", "batch", "threads"):
        if getattr(arguments, name) is not None:
            words += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    for text in arguments.set:
        words += ["--set", text]
    words += ["--device", arguments.device] if arguments.device != "auto" else []
    words += [f"--{name.replace('_', '-')}" for name in ("skip_bad", "yes") if getattr(arguments, name)]
    words += ["--measured-by", *arguments.measured_by] if arguments.measured_by else []
    return shlex.join(words + (["--no-batch"] if arguments.no_batch else []))


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
        data_root=Path(arguments.data) if arguments.data else None,
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


def _algorithms(arguments: argparse.Namespace) -> list[str | None]:
    if arguments.algorithm is None:
        return [None]
    return [name.strip() for name in arguments.algorithm.split(",") if name.strip()]


def _seeds(arguments: argparse.Namespace) -> Sequence[int | None]:
    """`--seeds 10` are 0 to 9, `--seeds 3,5` those two; None is the configuration file's own."""
    if arguments.seeds is None:
        given = configured(arguments)
        if arguments.seed is None and given.get("seed") is None:
            arguments.seed = 0  # of a grid, so that the same command goes on with the same runs
        return [arguments.seed]
    if arguments.seed is not None:
        raise UserError("--seed and --seeds cannot be given together.")
    return grid_size.seeds_of(arguments.seeds)


def _row_name(cell: Cell, varied: Sequence[str]) -> str:
    values = cell.experiment.to_json()
    flat = values | values["augmentation"] | values["training"] | values["method"]
    names = [name for name in varied if name.rpartition(".")[2] in flat]
    words = [f"{name}={flat[name.rpartition('.')[2]]}" for name in names]
    return " ".join([cell.experiment.algorithm, *words])
