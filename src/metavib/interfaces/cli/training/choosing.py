"""`--select leave-one-domain-out`: the best of several values of a setting, by the source domains alone."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from metavib.core.errors import UserError
from metavib.core.terminal import counting_bar, print_result, say
from metavib.interfaces.cli.flags import data_root
from metavib.interfaces.cli.training.context import context_with_bar
from metavib.interfaces.cli.training.experiments import network_in_words
from metavib.interfaces.cli.training.grid_cells import ask_to_begin, steps_of
from metavib.runs.capacity import advice_on, estimate
from metavib.runs.cells import Cell
from metavib.runs.cross_validation import LEAVE_ONE_DOMAIN_OUT, Choice, Question, choose, question
from metavib.runs.following import NOBODY
from metavib.runs.grid import CellResult, run_grid
from metavib.runs.one_run import ExecutionContext

Key = Any  # what a question is about, as the caller names it


def run_chosen(
    arguments: argparse.Namespace,
    cells: Sequence[Cell],
    varied: Sequence[str],
    device: torch.device,
    batch: int | None,
) -> tuple[list[Cell], list[CellResult]]:
    """Of the values that a setting was given, the best for each target by the source domains alone; trained."""
    if not varied:
        raise nothing_to_choose()
    asked: dict[tuple[str | None, str, int], list[Cell]] = {}
    for cell in cells:
        key = (cell.experiment.target, cell.experiment.algorithm, cell.experiment.seed)
        asked.setdefault(key, []).append(cell)
    questions = {key: question(candidates, data_root(arguments)) for key, candidates in asked.items()}
    folds = [fold for one in questions.values() for fold in one.all_folds]
    say(f"{len(folds)} runs on source domains to choose by, then {len(questions)}.")
    with context_with_bar(arguments, "choosing", steps_of(folds), device) as context:
        tell_plan(arguments, [*folds, *(some[0] for some in asked.values())], context, batch)
        chosen = chosen_cells(questions, context, batch)
    for (target, algorithm, seed), one in chosen.choices.items():
        held_out = "nothing held out" if target is None else f"{target!r} unseen"
        print_result(f"{algorithm}, {held_out}, seed {seed}: {choice_in_words(one)}")
    to_train = [one.chosen for one in chosen.choices.values()]
    with context_with_bar(arguments, "training", steps_of(to_train), device) as context:
        done = run_grid(to_train, context, batch=batch)
    chosen.record(done)
    by_cell = {one.cell: one for one in [*done, *chosen.lost]}
    return list(chosen.cells.values()), [by_cell[cell] for cell in chosen.cells.values()]


class Chosen(NamedTuple):
    """The outcome of questions: for each the chosen cell, or the first one where nothing could be chosen."""

    cells: dict[Key, Cell]
    choices: dict[Key, Choice]
    lost: list[CellResult]

    def record(self, done: Sequence[CellResult]) -> None:
        """Write the choices beside the runs that have results."""
        finished = {one.cell for one in done if one.results is not None}
        for choice in self.choices.values():
            if choice.chosen in finished:
                choice.record.write(choice.chosen.out)


def chosen_cells(questions: Mapping[Key, Question], context: ExecutionContext, batch: int | None) -> Chosen:
    """Train and measure the folds of all questions, and choose."""
    answers = dict(
        zip(
            questions,
            choose(list(questions.values()), replace(context, follower=NOBODY), batch=batch),
            strict=True,
        )
    )
    choices = {key: one for key, one in answers.items() if isinstance(one, Choice)}
    lost = {
        key: CellResult(questions[key].candidates[0], None, one)
        for key, one in answers.items()
        if isinstance(one, str)
    }
    cells = {key: choices[key].chosen if key in choices else lost[key].cell for key in questions}
    return Chosen(cells, choices, list(lost.values()))


def nothing_to_choose() -> UserError:
    """The error where no setting has several values."""
    return UserError(
        f"there is nothing to choose for {LEAVE_ONE_DOMAIN_OUT}: give a setting several values, "
        "as --set beta=.001,.01."
    )


def choice_in_words(choice: Choice) -> str:
    """The choice, with the scores of the candidates."""
    had = []
    for candidate in choice.record.candidates:
        settings = " ".join(f"{name.rpartition('.')[2]}={v}" for name, v in candidate.settings.items())
        mean = "broke down" if candidate.mean is None else f"{100 * candidate.mean:.2f} %"
        mark = ", chosen" if candidate.experiment == choice.record.chosen else ""
        had.append(f"{settings}: {mean}{mark}")
    return "; ".join(had) if had else "nothing to choose"


def tell_plan(
    arguments: argparse.Namespace, cells: Sequence[Cell], context: ExecutionContext, batch: int | None
) -> None:
    """Say how long the runs will take, and how much memory, before the first begins; ask where they are many."""
    with counting_bar("probing kinds of runs") as probed:
        # Features are computed here, for long: that can be stopped.
        frozen = any(cell.experiment.training.frozen for cell in cells)
        plan = estimate(
            cells,
            context if frozen else replace(context, stop=lambda: False),
            batch=batch,
            probed=probed,
        )
    if (network := network_in_words(arguments, cells[0].experiment)) is not None:
        context.say(network)
    context.say(plan.in_words())
    if advice := advice_on(plan, [cell.experiment for cell in cells], context.device):
        context.say(advice)
    seeds = arguments.seeds or ""
    one = f"For one run with seed {seeds}: --seed {seeds}. " if seeds.isdecimal() else ""
    instead = f"{one}Name fewer of what there are many of, or skip this question with --yes."
    ask_to_begin(arguments, plan.runs - plan.finished, instead)
