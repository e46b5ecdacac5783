"""Tables that live in a terminal while `reproduce` or `sweep` goes on; elsewhere, now and then a line."""

import collections
import math
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, final

from metavib.core import atomic
from metavib.core.foreign_text import visible_lines
from metavib.core.terminal import PLAIN_SECONDS, duration, give_terminal_back, say, table, take_terminal
from metavib.reports.paper.reproduction import Choices
from metavib.reports.paper.tables import PAPER_MEASURE
from metavib.runs.cells import Cell
from metavib.runs.grid import CellResult, GridObserver
from metavib.runs.sweep.engine import Listener
from metavib.runs.sweep.plan import Plan
from metavib.training.loop import TrainingProgress

Table = TypeVar("Table", bound="LiveTable")


class LiveTable(ABC):
    """Who has something to show says `show`; `say` puts a line above it."""

    def __init__(self) -> None:
        self.told = 0.0
        self.live: Any = None

    @abstractmethod
    def text(self) -> str:
        """The table as it stands."""

    def __enter__(self: Table) -> Table:
        """Take the terminal, where there is one."""
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
            self.live.console.print(visible_lines(text), highlight=False, markup=False)
        else:
            say(text)

    def show(self, line: str) -> None:
        """The table, or where there is no terminal the line, if the last one was long ago."""
        if self.live is not None:
            from rich.text import Text

            self.live.update(Text(self.text()))
        elif line and time.monotonic() - self.told >= PLAIN_SECONDS:
            self.told = time.monotonic()
            say(line)


@final
class Board(LiveTable, GridObserver):
    """The cells while they are trained: a table that lives in a terminal, now and then a line elsewhere."""

    def __init__(self, choices: Choices, cells: dict[tuple[str, str, int], Cell]) -> None:
        super().__init__()
        self.choices, self.cells = choices, cells
        self.states: dict[Path, str] = {}  # of a cell that runs or failed
        self.accuracies: dict[Path, float] = {}
        self.started: dict[Path, tuple[float, float]] = {}

    def running(self, cells: Sequence[Cell], progress: TrainingProgress) -> None:
        now = time.monotonic()
        began, first = self.started.setdefault(cells[0].out, (now, progress.worked))
        made = progress.worked - first
        left = (now - began) / made * (progress.steps - progress.worked) if made > 0 else None
        state = f"step {progress.step}" + (f", {duration(left)} left" if left is not None else "")
        for cell in cells:
            self.states[cell.out] = state
        known = len(set(self.cells.values()))
        self.show(f"{len(self.accuracies)} of {known} runs done; {len(cells)} running: {state}")

    def finished(self, done: CellResult) -> None:
        if done.results is None:
            self.states[done.cell.out] = "failed"
        else:
            self.states.pop(done.cell.out, None)
            mean = None if done.results.unseen is None else done.results.unseen.mean(PAPER_MEASURE)
            self.accuracies[done.cell.out] = math.nan if mean is None else 100 * mean
        self.show("")

    def text(self) -> str:
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


@final
class SweepBoard(LiveTable, Listener):
    """The cells of one stage after another. Everything that workers say goes to `log.txt`."""

    def __init__(self, plan: Plan, out: Path) -> None:
        super().__init__()
        self.plan, self.logged = plan, out / "log.txt"
        self.stage = ""
        self.who: dict[Path, tuple[str, str]] = {}
        self.steps: dict[Path, str] = {}  # of those that are being trained
        self.over: dict[Path, bool] = {}  # whether it has results

    def expect(self, who: Mapping[Cell, tuple[str, str]], stage: str) -> None:
        """A new stage, with these cells."""
        self.stage = stage
        self.who = {cell.out: key for cell, key in who.items()}
        self.steps, self.over = {}, {}
        self.say(f"{stage}: {len(self.who)} run{'s' if len(self.who) > 1 else ''}.")

    def running(self, cells: Sequence[Cell], step: int, steps: int) -> None:
        for cell in cells:
            self.steps[cell.out] = f"step {step} of {steps}"
        self._show()

    def waiting(self, cells: Sequence[Cell]) -> None:
        for cell in cells:
            self.steps.pop(cell.out, None)
        self._show()

    def finished(self, done: CellResult) -> None:
        self.steps.pop(done.cell.out, None)
        self.over[done.cell.out] = done.results is not None
        if done.failure is not None:
            self.log(f"{done.cell.out.name} has no results: {done.failure}")
        self._show()

    def log(self, text: str) -> None:
        """A line in the log."""
        atomic.append_line(self.logged, text)

    def warn(self, text: str) -> None:
        """A line in the log and above the table."""
        self.log(text)
        self.say(text)

    def text(self) -> str:
        rows = [
            [name, *(self._cell(name, target) for target in self.plan.targets)]
            for name in self.plan.algorithms
        ]
        return f"{self.stage}\n{table(['', *self.plan.targets], rows)}"

    def _cell(self, algorithm: str, target: str) -> str:
        places = [place for place, key in self.who.items() if key == (algorithm, target)]
        if not places:
            return "-"
        count = collections.Counter(self.over[place] for place in places if place in self.over)
        parts = [f"{count[True]}/{len(places)}"]
        parts += [f"{count[False]} failed"] if count[False] else []
        parts += [self.steps[place] for place in places if place in self.steps][:1]
        return ", ".join(parts)

    def _show(self) -> None:
        running = f"; {len(self.steps)} running: {next(iter(self.steps.values()))}" if self.steps else ""
        self.show(f"{self.stage}: {len(self.over)} of {len(self.who)} runs done{running}")
