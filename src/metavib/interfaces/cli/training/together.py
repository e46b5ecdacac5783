"""`metavib train --together N`: the runs of a grid in several processes that share a GPU, or the cores of a CPU.

A small step leaves a GPU partly idle, and networks for photographs are not stacked. The processes are those of a
sweep: one that is lost is replaced, Ctrl-C lets each write a checkpoint, and where the command is killed they end.
"""

import argparse
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import final

import torch

from metavib.core.errors import UserError
from metavib.core.memory import asked_for, limited_to
from metavib.core.terminal import Bar, say
from metavib.interfaces.cli.training import stopping
from metavib.interfaces.cli.training.choosing import tell_plan
from metavib.interfaces.cli.training.context import COMPILED, context_with_bar, packet_options
from metavib.interfaces.cli.training.grid_cells import steps_of
from metavib.nn.own_network import is_own
from metavib.runs.capacity import together_of
from metavib.runs.cells import Cell
from metavib.runs.cross_validation import LEAVE_ONE_DOMAIN_OUT
from metavib.runs.grid import CellResult
from metavib.runs.sweep.engine import Listener, train_all
from metavib.runs.sweep.local_engine import LocalEngine

AUTO = "auto"
MOST = 64  # processes; a slip beyond


def check_together(arguments: argparse.Namespace) -> None:
    """Refuse a number of processes that cannot be meant, and what processes cannot do."""
    text = arguments.together
    if text is None:
        return
    if text != AUTO and not (text.isdecimal() and text.isascii() and 1 <= int(text) <= MOST):
        raise UserError(f"--together must be a number of processes from 1 to {MOST}, or auto, not {text}.")
    if arguments.log:
        raise UserError("--log follows the runs of one process: leave it out, or --together.")
    if arguments.select == LEAVE_ONE_DOMAIN_OUT:
        raise UserError(f"--select {LEAVE_ONE_DOMAIN_OUT} trains in one process: leave --together out.")


def run_together(
    arguments: argparse.Namespace, cells: Sequence[Cell], device: torch.device, batch: int | None
) -> list[CellResult]:
    """Train and measure all cells, several at a time. Raises `Stopped` on Ctrl-C."""
    with context_with_bar(arguments, "probing", steps_of(cells), device) as context:
        if arguments.together == AUTO:
            count = together_of(cells, context, batch)
        else:
            count = min(int(arguments.together), len(cells))
        tell_plan(arguments, cells, context, batch)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # the processes need what the probe had
    say(f"Up to {count} runs at a time, in processes of their own; the estimate is for one after another.")
    own = arguments.backbone if is_own(arguments.backbone or "") else None
    options = packet_options(arguments, batch=batch, own=own, compiled=COMPILED[arguments.compile])
    here = [replace(cell, out=cell.out.resolve()) for cell in cells]
    limit = asked_for()  # of all processes together
    with (
        stopping.stop_requested() as stop,
        limited_to(None if limit is None else str(max(1, limit // count))),
        contextlib.closing(LocalEngine(device, count, here[0].out.parent / "workers.log")) as engine,
        Bar("training", steps_of(cells)) as bar,
    ):
        done = train_all(here, options, engine, _StepsInOneBar(cells, bar), stop=stop)
    return [replace(done[cell.out.resolve()], cell=cell) for cell in cells]


@final
class _StepsInOneBar(Listener):
    """The steps of all runs in one bar."""

    def __init__(self, cells: Sequence[Cell], bar: Bar) -> None:
        self.bar = bar
        self.steps = {cell.out.resolve(): cell.experiment.training.steps for cell in cells}
        self.made = dict.fromkeys(self.steps, 0)
        self.over: set[Path] = set()

    def running(self, cells: Sequence[Cell], step: int, steps: int) -> None:
        for cell in cells:
            self.made[cell.out] = step
        self._show()

    def waiting(self, cells: Sequence[Cell]) -> None:
        """They go on from a checkpoint, which is not known here."""

    def finished(self, done: CellResult) -> None:
        place = done.cell.out
        self.over.add(place)
        self.made[place] = self.steps[place]
        if done.failure is not None:
            self.bar.say(f"{place} is left out: {done.failure}")
        self._show()

    def log(self, text: str) -> None:
        self.bar.say(text)

    def warn(self, text: str) -> None:
        self.bar.say(text)

    def _show(self) -> None:
        self.bar.update(sum(self.made.values()), f"{len(self.over)} of {len(self.steps)} runs done")
