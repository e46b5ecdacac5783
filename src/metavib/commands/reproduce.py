"""`metavib reproduce`: a table of the paper, measured, with the paper's numbers beside ours."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import shlex
from collections.abc import Sequence
from pathlib import Path

from metavib import atomic
from metavib import reproduction as tables
from metavib import reproduction_formats as formats
from metavib.capacity import Estimate, estimate
from metavib.cells import Cell
from metavib.commands import grid_size
from metavib.commands.board import Board
from metavib.commands.train import assignments_from, stop_requested
from metavib.commands.train_grid import choice_in_words
from metavib.cross_validation import LEAVE_ONE_DOMAIN_OUT, Choice, Question, choose, question
from metavib.device import resolve_device
from metavib.errors import UserError
from metavib.grid import Done, run_grid
from metavib.paper import Table, table_named
from metavib.run_directory import RunDirectory
from metavib.runner import Surroundings
from metavib.terminal import counting_bar, print_json, print_result, say, table
from metavib.trainer import Stopped


def run(arguments: argparse.Namespace) -> int:
    """Train what is missing of the table, then print and write it."""
    paper = table_named(arguments.name)
    choices = choices_from(arguments, paper)
    out = Path(arguments.out or f"runs/reproduce/{paper.name}")
    by_candidate = [tables.cells_of(paper, own, out) for own in candidates(choices)]
    cells = by_candidate[0]
    choosing = arguments.select == LEAVE_ONE_DOMAIN_OUT
    check_candidates(len(by_candidate), choosing=choosing)
    device = resolve_device(arguments.device)
    with stop_requested() as stop, counting_bar("reading images") as reading:
        surroundings = Surroundings(
            device=device,
            data_root=Path(arguments.data) if arguments.data else None,
            stop=stop,
            reading=reading,
            checkpoint_seconds=arguments.checkpoint_seconds,
            threads=arguments.threads,
        )
        batch = 1 if arguments.no_batch else None
        questions: dict[tuple[str, str, int], Question] = {}
        chosen: list[Choice] = []
        lost: list[Done] = []
        if choosing:
            asked = {key: [own[key] for own in by_candidate] for key in cells}
            questions = {key: question(own, surroundings.data_root) for key, own in asked.items()}
        folds = [fold for one in questions.values() for fold in one.all_folds]
        # Which candidate will be trained is not known yet: one that has results, or else the first stands for it.
        expected = [_likely([own[key] for own in by_candidate]) for key in cells]
        try:
            with counting_bar("probing kinds of runs") as probed:
                every = list(dict.fromkeys([*folds, *expected]))
                plan = estimate(every, surroundings, batch=batch, probed=probed)
        except Stopped as stopped:
            say(f"metavib: {stopped}; what is finished is kept. To go on: {resume_command(arguments)}")
            return 130
        if arguments.plan:
            print_result(plan.in_words())
            if arguments.json:
                print_json(plan._asdict())
            return 0
        agree(plan, arguments)
        if choosing:
            try:
                cells, chosen, lost = chosen_cells(questions, surroundings, batch)
            except Stopped as stopped:
                say(f"metavib: {stopped}; the runs are kept. To go on: {resume_command(arguments)}")
                return 130
            choices = dataclasses.replace(choices, chosen_by=f"settings by {LEAVE_ONE_DOMAIN_OUT}, ")
        without_a_choice = {one.cell for one in lost}
        everything = [cell for cell in dict.fromkeys(cells.values()) if cell not in without_a_choice]
        with Board(choices, cells) as board:
            try:
                done = run_grid(
                    everything,
                    Surroundings(**(vars(surroundings) | {"say": board.say})),
                    batch=batch,
                    watch=board,
                )
            except Stopped as stopped:
                board.say(f"metavib: {stopped}; the runs are kept. To go on: {resume_command(arguments)}")
                return 130
    finished = {one.cell for one in done if one.results is not None}
    for choice in chosen:
        if choice.chosen in finished:
            choice.write()
    return tell(tables.measured(paper, choices, cells, [*done, *lost]), out, as_json=arguments.json)


def tell(result: tables.Reproduction, out: Path, *, as_json: bool) -> int:
    """Print and write the table; the exit status."""
    header, lines = formats.body(result)
    print_result(f"{result.caption}\n\n{table(header, lines)}")
    written = {
        "md": formats.as_markdown(result),
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


def choices_from(arguments: argparse.Namespace, paper: Table) -> tables.Choices:
    """What of the table is asked for."""
    rows = tables.rows_to_measure(paper, arguments.algorithms)
    if not rows:
        raise UserError(f"no row of {paper.name} is left to measure.")
    choices = tables.Choices(
        rows=rows,
        targets=tuple(arguments.targets or paper.targets),
        seeds=tuple(grid_size.seeds_of(arguments.seeds)),
        preset=arguments.preset,
        protocol=arguments.protocol,
        backbone=arguments.backbone,
        weights=arguments.weights,
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
        raise UserError(
            f"there is nothing to choose for {LEAVE_ONE_DOMAIN_OUT}: give a setting several values, "
            "as --set beta=.001,.01."
        )


def chosen_cells(
    questions: dict[tuple[str, str, int], Question], surroundings: Surroundings, batch: int | None
) -> tuple[dict[tuple[str, str, int], Cell], list[Choice], list[Done]]:
    """The cells with the settings that did best on the source domains, the choices, and cells without one."""
    choices = choose(list(questions.values()), dataclasses.replace(surroundings, say=say), batch=batch)
    cells, lost = {}, []
    for (key, asked), choice in zip(questions.items(), choices, strict=True):
        if isinstance(choice, str):
            cells[key] = asked.candidates[0]
            lost.append(Done(cells[key], None, choice))
        else:
            print_result(f"{', '.join(map(str, key))}: {choice_in_words(choice)}")
            cells[key] = choice.chosen
    return cells, [one for one in choices if isinstance(one, Choice)], lost


def _likely(candidates: Sequence[Cell]) -> Cell:
    finished = [cell for cell in candidates if RunDirectory(cell.out).results.exists()]
    return finished[0] if finished else candidates[0]


def agree(plan: Estimate, arguments: argparse.Namespace) -> None:
    """Say how much there is to do, and ask whether to begin where it is many runs."""
    say(plan.in_words())
    left = plan.runs - plan.finished
    if left > grid_size.LARGE:
        instead = "Name fewer --algorithms, --targets or --seeds, or skip this question with --yes."
        grid_size.confirm(f"Train {left:,} runs?", yes=arguments.yes, instead=instead)
        arguments.yes = True  # the command that goes on need not ask again


def resume_command(arguments: argparse.Namespace) -> str:
    """The command that goes on with the table."""
    words = ["metavib", "reproduce", arguments.name]
    for name in ("algorithms", "targets"):
        if getattr(arguments, name):
            words += [f"--{name}", *getattr(arguments, name)]
    single = (
        "seeds",
        "preset",
        "steps",
        "backbone",
        "weights",
        "select",
        "average",
        "record_information",
        "protocol",
        "out",
        "data",
        "device",
        "threads",
    )
    for name in single:
        if getattr(arguments, name) is not None:
            words += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    for text in arguments.set:
        words += ["--set", text]
    words += [f"--{name.replace('_', '-')}" for name in ("no_batch", "yes") if getattr(arguments, name)]
    return shlex.join(words)
