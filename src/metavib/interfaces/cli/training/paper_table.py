"""`metavib reproduce`: a table of the paper, measured, with the paper's numbers beside ours."""

import argparse
import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

from metavib.core import atomic
from metavib.core.device import resolve_device
from metavib.core.errors import UserError
from metavib.core.terminal import counting_bar, print_json, print_result, say, table
from metavib.interfaces.cli.flags import data_root
from metavib.interfaces.cli.parsing import resume_command
from metavib.interfaces.cli.training import stopping
from metavib.interfaces.cli.training.boards import Board
from metavib.interfaces.cli.training.choosing import Chosen, choice_in_words, chosen_cells, nothing_to_choose
from metavib.interfaces.cli.training.experiments import assignments_from
from metavib.interfaces.cli.training.grid_cells import ask_to_begin, seeds_of
from metavib.nn.own_network import own_network
from metavib.reports.paper import formats
from metavib.reports.paper import reproduction as tables
from metavib.reports.paper.tables import PaperTable, table_named
from metavib.runs.capacity import estimate
from metavib.runs.cells import Cell
from metavib.runs.cross_validation import LEAVE_ONE_DOMAIN_OUT, Question, question
from metavib.runs.grid import require_readable_grid, run_grid
from metavib.runs.one_run import ExecutionContext
from metavib.training.loop import Stopped
from metavib.training.run_directory import RunDirectory


def reproduce_table(arguments: argparse.Namespace) -> int:
    """Train what is missing of the table, then print and write it."""
    try:
        return _measure_table(arguments)
    except Stopped as stopped:
        say(f"metavib: {stopped}; the runs are kept. To go on: {resume_command(arguments)}")
        return 130


def _measure_table(arguments: argparse.Namespace) -> int:
    paper = table_named(arguments.name)
    choices = choices_from(arguments, paper)
    out = Path(arguments.out or f"runs/reproduce/{paper.name}")
    by_candidate = [tables.cells_of(paper, own, out) for own in candidates(choices)]
    require_readable_grid([cell for own in by_candidate for cell in own.values()])
    cells = by_candidate[0]
    choosing = arguments.select == LEAVE_ONE_DOMAIN_OUT
    check_candidates(len(by_candidate), choosing=choosing)
    with stopping.stop_requested() as stop, counting_bar("reading images") as reading:
        context = ExecutionContext(
            device=resolve_device(arguments.device),
            data_root=data_root(arguments),
            stop=stop,
            reading=reading,
            checkpoint_seconds=arguments.checkpoint_seconds,
            threads=arguments.threads,
            own=own_network(arguments.backbone),
        )
        batch = 1 if arguments.no_batch else None
        questions: dict[tuple[str, str, int], Question] = {}
        chosen = Chosen(cells, {}, [])
        if choosing:
            asked = {key: [own[key] for own in by_candidate] for key in cells}
            questions = {key: question(own, context.data_root) for key, own in asked.items()}
        folds = [fold for one in questions.values() for fold in one.all_folds]
        # Which candidate will be trained is not known yet: one that has results, or else the first stands for it.
        expected = [_likely([own[key] for own in by_candidate]) for key in cells]
        with counting_bar("probing kinds of runs") as probed:
            every = list(dict.fromkeys([*folds, *expected]))
            plan = estimate(every, context, batch=batch, probed=probed)
        if arguments.plan:
            print_result(plan.in_words())
            if arguments.json:
                print_json(plan._asdict())
            return 0
        say(plan.in_words())
        instead = "Name fewer --algorithms, --targets or --seeds, or skip this question with --yes."
        ask_to_begin(arguments, plan.runs - plan.finished, instead)
        if choosing:
            chosen = chosen_cells(questions, dataclasses.replace(context, say=say), batch)
            for key, one in chosen.choices.items():
                print_result(f"{', '.join(map(str, key))}: {choice_in_words(one)}")
            choices = dataclasses.replace(choices, chosen_by=f"settings by {LEAVE_ONE_DOMAIN_OUT}, ")
        without_a_choice = {one.cell for one in chosen.lost}
        left = [cell for cell in dict.fromkeys(chosen.cells.values()) if cell not in without_a_choice]
        with Board(choices, chosen.cells) as board:
            shown = dataclasses.replace(context, say=board.say)
            done = run_grid(left, shown, batch=batch, observer=board)
    chosen.record(done)
    result = tables.measured(paper, choices, chosen.cells, [*done, *chosen.lost])
    return tell_table(result, out, as_json=arguments.json)


def tell_table(result: tables.Reproduction, out: Path, *, as_json: bool) -> int:
    """Print and write the table; the exit status."""
    header, lines = formats.table_body(result)
    print_result(f"{result.caption}\n\n{table(header, lines)}")
    written = {
        "md": formats.table_markdown(result),
        "tex": formats.as_latex(result),
        "csv": formats.as_csv(result),
    }
    for ending, text in written.items():
        atomic.write_text(out / f"table.{ending}", text)
    record = tables.as_json(result)
    atomic.write_json(out / "table.json", record)
    print_result(f"\nwritten to {out}/table.md, .tex, .csv and .json")
    if as_json:
        print_json(record)
    failures = [f"{row.row.title}, {what}" for row in result.rows for what in row.failures]
    for failure in failures:
        say(f"metavib: failed: {failure}")
    return 1 if failures else 0


def choices_from(arguments: argparse.Namespace, paper: PaperTable) -> tables.Choices:
    """The part of the table that the flags ask for."""
    rows = tables.rows_to_measure(paper, arguments.algorithms)
    if not rows:
        raise UserError(f"no row of {paper.name} is left to measure.")
    choices = tables.Choices(
        rows=rows,
        targets=tuple(arguments.targets or paper.targets),
        seeds=tuple(seeds_of(arguments.seeds)),
        preset=arguments.preset,
        protocol=arguments.protocol,
        backbone=arguments.backbone,
        weights=arguments.weights,
        image_size=arguments.image_size,
        assignments=assignments_from(arguments),
    )
    if arguments.algorithms is None and choices.assigned("selection") == "oracle":
        plain = tuple(row for row in rows if row.settings.get("average") != "swad")  # which it cannot select
        return dataclasses.replace(choices, rows=plain)
    return choices


def candidates(choices: tables.Choices) -> list[tables.Choices]:
    """The choices for every combination of values, where a setting has several."""
    values = {
        name: [part.strip() for part in str(value).split(",")] for name, value in choices.assignments.items()
    }
    combined = itertools.product(*values.values())
    return [dataclasses.replace(choices, assignments=dict(zip(values, own, strict=True))) for own in combined]


def check_candidates(count: int, *, choosing: bool) -> None:
    """Several values are for a rule that chooses among them, and the rule is for several values."""
    if count > 1 and not choosing:
        raise UserError(
            f"a setting has several values: choose among them with --select {LEAVE_ONE_DOMAIN_OUT}."
        )
    if count == 1 and choosing:
        raise nothing_to_choose()


def _likely(candidates: Sequence[Cell]) -> Cell:
    finished = [cell for cell in candidates if RunDirectory(cell.out).results.exists()]
    return finished[0] if finished else candidates[0]
