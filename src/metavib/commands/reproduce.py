"""`metavib reproduce`: a table of the paper, measured, with the paper's numbers beside ours."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import shlex
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from metavib import atomic
from metavib import reproduction as tables
from metavib import reproduction_formats as formats
from metavib.capacity import Estimate, estimate
from metavib.cells import Cell
from metavib.commands.train import assignments_from, stop_requested
from metavib.commands.train_grid import choice_in_words, seeds_of
from metavib.cross_validation import LEAVE_ONE_DOMAIN_OUT, Choice, Question, choose, question
from metavib.device import resolve_device
from metavib.errors import UserError
from metavib.grid import Done, Watch, run_grid
from metavib.paper import Table, table_named
from metavib.run_directory import RunDirectory
from metavib.runner import Surroundings
from metavib.terminal import (
    PLAIN_SECONDS,
    duration,
    give_terminal_back,
    reading_bar,
    say,
    table,
    take_terminal,
)
from metavib.trainer import Progress, Stopped


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
    with stop_requested() as stop, reading_bar("reading images") as reading:
        surroundings = Surroundings(
            device=device,
            data_root=Path(arguments.data) if arguments.data else None,
            stop=stop,
            reading=reading,
            checkpoint_seconds=arguments.checkpoint_seconds,
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
        plan = estimate(list(dict.fromkeys([*folds, *expected])), surroundings, batch=batch)
        say(in_words(plan))
        if arguments.plan:
            if arguments.json:
                print(json.dumps(plan._asdict()))
            return 0
        if choosing:
            try:
                cells, chosen, lost = chosen_cells(questions, surroundings, batch)
            except Stopped as stopped:
                say(f"metavib: {stopped}; the runs are kept. To go on: {resume_command(arguments)}")
                return 130
            choices = dataclasses.replace(choices, chosen_by=f"settings by {LEAVE_ONE_DOMAIN_OUT}, ")
        without_a_choice = {one.cell for one in lost}
        everything = [cell for cell in dict.fromkeys(cells.values()) if cell not in without_a_choice]
        with Board(paper, choices, cells) as board:
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
    say(f"\n{result.caption}\n\n{table(header, lines)}")
    written = {
        "md": formats.as_markdown(result),
        "tex": formats.as_latex(result),
        "csv": formats.as_csv(result),
    }
    for ending, text in written.items():
        atomic.write_text(out / f"table.{ending}", text)
    record = tables.as_json(result)
    atomic.write_json(out / "table.json", record)
    say(f"\nwritten to {out}/table.md, .tex, .csv and .json")
    if as_json:
        print(json.dumps(record))
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
        seeds=tuple(seeds_of(arguments.seeds)),
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
            say(f"{', '.join(map(str, key))}: {choice_in_words(choice)}")
            cells[key] = choice.chosen
    return cells, [one for one in choices if isinstance(one, Choice)], lost


def _likely(candidates: Sequence[Cell]) -> Cell:
    finished = [cell for cell in candidates if RunDirectory(cell.out).results.exists()]
    return finished[0] if finished else candidates[0]


def in_words(plan: Estimate) -> str:
    """How much there is to do."""
    text = f"{plan.runs} runs, {plan.finished} of them finished already."
    if plan.seconds is None:
        return text
    return f"{text} About {duration(plan.seconds)} to go and {plan.gigabytes:.1f} GB of memory, by a short probe."


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
    )
    for name in single:
        if getattr(arguments, name) is not None:
            words += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    for text in arguments.set:
        words += ["--set", text]
    return shlex.join(words + (["--no-batch"] if arguments.no_batch else []))


@final
class Board(Watch):
    """The cells while they are trained: a table that lives in a terminal, now and then a line elsewhere."""

    def __init__(
        self, paper: Table, choices: tables.Choices, cells: dict[tuple[str, str, int], Cell]
    ) -> None:
        self.paper, self.choices, self.cells = paper, choices, cells
        self.states: dict[Path, str] = {}  # of a cell that runs or failed
        self.accuracies: dict[Path, float] = {}
        self.started: dict[Path, tuple[float, int]] = {}
        self.told = 0.0
        self.live: Any = None

    def __enter__(self) -> Board:
        if take_terminal():
            try:
                from rich.console import Console
                from rich.live import Live
            except ModuleNotFoundError:  # then lines will do
                give_terminal_back()
            else:
                self.live = Live(console=Console(stderr=True), refresh_per_second=2)
                self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.stop()
            give_terminal_back()

    def say(self, text: str) -> None:
        """A line above the table."""
        if self.live is not None:
            self.live.console.print(text, highlight=False, markup=False)
        else:
            say(text)

    def running(self, cells: Sequence[Cell], progress: Progress) -> None:
        """Note where the cells stand, and how long they will take."""
        now = time.monotonic()
        began, first = self.started.setdefault(cells[0].out, (now, progress.step))
        made = progress.step - first
        left = (now - began) / made * (progress.steps - progress.step) if made else None
        state = f"step {progress.step}" + (f", {duration(left)} left" if left is not None else "")
        for cell in cells:
            self.states[cell.out] = state
        self._show(f"{len(cells)} running: {state}")

    def finished(self, done: Done) -> None:
        """Note what became of a cell."""
        if done.results is None:
            self.states[done.cell.out] = "failed"
        else:
            self.states.pop(done.cell.out, None)
            self.accuracies[done.cell.out] = 100 * done.results["unseen"][tables.MEASURE]["mean"]
        self._show("")

    def text(self) -> str:
        """The table as it stands."""
        rows = []
        for row in self.choices.rows:
            cells = [self._cell(row.title, target) for target in self.choices.targets]
            rows.append([row.title, *cells])
        return table(["", *self.choices.targets], rows)

    def _cell(self, title: str, target: str) -> str:
        places = [self.cells[title, target, seed].out for seed in self.choices.seeds]
        known = [self.accuracies[place] for place in places if place in self.accuracies]
        states = [self.states[place] for place in places if place in self.states]
        parts = [f"{statistics.mean(known):.2f} ({len(known)}/{len(places)})"] if known else []
        parts += list(dict.fromkeys(states))[:1]
        return ", ".join(parts) if parts else "queued"

    def _show(self, line: str) -> None:
        if self.live is not None:
            from rich.text import Text

            self.live.update(Text(self.text()))
        elif line and time.monotonic() - self.told >= PLAIN_SECONDS:
            self.told = time.monotonic()
            say(f"{len(self.accuracies)} of {len(set(self.cells.values()))} runs done; {line}")
