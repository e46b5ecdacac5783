"""The live table of `metavib reproduce`: which cells wait, run, are done or have failed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from metavib.cells import Cell
from metavib.grid import Done, Watch
from metavib.reproduction import MEASURE, Choices
from metavib.terminal import PLAIN_SECONDS, duration, give_terminal_back, say, table, take_terminal
from metavib.trainer import Progress


@final
class Board(Watch):
    """The cells while they are trained: a table that lives in a terminal, now and then a line elsewhere."""

    def __init__(self, choices: Choices, cells: dict[tuple[str, str, int], Cell]) -> None:
        self.choices, self.cells = choices, cells
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
            self.accuracies[done.cell.out] = 100 * done.results["unseen"][MEASURE]["mean"]
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
