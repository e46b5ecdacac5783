"""`metavib train` with several targets, seeds, algorithms or values of a setting: a grid, and its tables."""

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from metavib.core.device import resolve_device
from metavib.core.errors import UserError
from metavib.core.terminal import mean_and_deviation, print_json, print_result, say, table
from metavib.interfaces.cli.calibration import calibrate_if_asked
from metavib.interfaces.cli.outcome import expected_in_words, selected_by
from metavib.interfaces.cli.parsing import resume_command
from metavib.interfaces.cli.training.choosing import run_chosen, tell_plan
from metavib.interfaces.cli.training.context import context_with_bar
from metavib.interfaces.cli.training.experiments import expected_of
from metavib.interfaces.cli.training.grid_cells import grid_of, size_in_words, steps_of
from metavib.interfaces.cli.training.together import check_together, run_together
from metavib.models.class_accuracy import never_right, rows_of_run
from metavib.models.results import Expected
from metavib.runs.cells import Cell
from metavib.runs.cross_validation import LEAVE_ONE_DOMAIN_OUT
from metavib.runs.expectation import record_expectation
from metavib.runs.grid import CellResult, require_readable_grid, run_grid
from metavib.training.loop import Stopped
from metavib.training.run_directory import RunDirectory


def train_grid(arguments: argparse.Namespace) -> int:
    """Train every run of the grid, and print the table of what was measured."""
    if arguments.batch is not None and arguments.batch < 1:
        raise UserError("--batch must be a whole number from 1.")
    check_together(arguments)
    cells, varied = grid_of(arguments)
    device = resolve_device(arguments.device)  # an error comes before anything is said
    require_readable_grid(cells)
    batch = 1 if arguments.no_batch else arguments.batch
    expected = expected_of_cells(arguments, cells)
    try:
        if arguments.select == LEAVE_ONE_DOMAIN_OUT:
            cells, done = run_chosen(arguments, cells, varied, device, batch)
        elif arguments.together is not None:
            say(f"{size_in_words(cells)}.")
            done = run_together(arguments, cells, device, batch)
        else:
            say(f"{size_in_words(cells)}.")
            with context_with_bar(arguments, "training", steps_of(cells), device) as context:
                tell_plan(arguments, cells, context, batch)
                done = run_grid(cells, context, batch=batch)
    except Stopped as stopped:
        say(f"metavib: {stopped}; the runs are kept. To go on: {resume_command(arguments)}")
        return 130
    done = [with_expectation(one, expected.get(one.cell.out)) for one in done]
    show_tables(done, varied)
    if not calibrate_if_asked(arguments, [one.cell.out for one in done if one.results is not None], device):
        return 130
    failed = [one for one in done if one.results is None]
    first = next((one.results for one in done if one.results), None)
    if first:
        chosen = f"settings by {LEAVE_ONE_DOMAIN_OUT}; " if arguments.select == LEAVE_ONE_DOMAIN_OUT else ""
        by = selected_by(first.selection, first.average)
        print_result(f"({chosen}{by}; protocol: {first.protocol}; runs in {cells[0].out.parent})")
    if arguments.json:
        runs = [one.results.to_json() | {"run": str(one.cell.out)} for one in done if one.results is not None]
        missing = [{"run": str(one.cell.out), "why": one.failure} for one in failed]
        print_json({"runs": runs, "failed": missing})
    if failed:
        say(
            f"metavib: {len(failed)} of {len(done)} runs broke down and have no results; the lines above say why."
        )
        return 2
    return 0


def expected_of_cells(arguments: argparse.Namespace, cells: Sequence[Cell]) -> dict[Path, Expected | None]:
    """The expectation by `--measured-by` of each run that holds nothing out; an error where all hold one out."""
    final = [cell for cell in cells if cell.experiment.target is None] or cells
    return {cell.out: expected_of(arguments, cell.experiment) for cell in final}


def with_expectation(done: CellResult, expected: Expected | None) -> CellResult:
    """A run with what to expect of a new domain in its results and its model card."""
    if expected is None or done.results is None:
        return done
    return replace(done, results=record_expectation(RunDirectory(done.cell.out), expected))


def show_tables(done: Sequence[CellResult], varied: Sequence[str]) -> None:
    """Print the results: on unseen domains, and on source validation where nothing was held out."""
    held_out = [one for one in done if one.cell.experiment.target is not None]
    if held_out:
        print_result("Accuracy on the unseen domain, %, mean and deviation over seeds:")
        print_result(table_of_runs(held_out, varied, "accuracy"))
        print_result("\nCalibration error (ECE) on the unseen domain, %:")
        print_result(table_of_runs(held_out, varied, "ece"))
    final = [one for one in done if one.cell.experiment.target is None]
    if final:
        print_result(
            "\nNothing was held out; accuracy on source validation, %, mean and deviation over seeds:"
        )
        print_result(table_of_runs(final, varied, "accuracy"))
    for one in final:
        if one.results is not None and one.results.expected is not None:
            words = expected_in_words(one.results.expected)
            print_result(f"{one.cell.out}: expected on a new domain: {words}.")
    for one in done:
        warning = None if one.results is None else never_right(rows_of_run(one.results))
        if warning:
            say(f"warning: {one.cell.out.name}: {warning}.")


def table_of_runs(done: Sequence[CellResult], varied: Sequence[str], measure: str) -> str:
    """Algorithms and settings x targets, each cell the mean over its seeds, with the mean of each row."""
    by_row: dict[str, dict[str, list[float]]] = {}
    named = {one.cell.out: one.cell.experiment.target or "all domains" for one in done}
    targets = list(dict.fromkeys(named.values()))
    for one in done:
        row = by_row.setdefault(_row_name(one.cell, varied), {})
        measured = None if one.results is None else one.results.measured
        value = None if measured is None else measured.mean(measure)
        if value is not None:
            row.setdefault(named[one.cell.out], []).append(100 * value)
    rows = []
    for name, cells in by_row.items():
        found = [cells.get(target, []) for target in targets]
        means = [statistics.mean(values) for values in found if values]
        mean = f"{statistics.mean(means):.2f}" if len(means) == len(targets) else "-"
        rows.append([name, *map(mean_and_deviation, found), mean])
    return table(["", *targets, "mean"], rows)


def _row_name(cell: Cell, varied: Sequence[str]) -> str:
    values = cell.experiment.to_json()
    flat = values | values["augmentation"] | values["training"] | values["method"]
    names = [name for name in varied if name.rpartition(".")[2] in flat]
    words = [f"{name}={flat[name.rpartition('.')[2]]}" for name in names]
    return " ".join([cell.experiment.algorithm, *words])
