"""The live table of `metavib reproduce`: which cells wait, run, are done or have failed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import final

from metavib.cells import Cell
from metavib.commands.live_table import LiveTable
from metavib.grid import Done, Watch
from metavib.reproduction import MEASURE, Choices
from metavib.terminal import duration, table
from metavib.trainer import Progress


@final
class Board(LiveTable, Watch):
    """The cells while they are trained: a table that lives in a terminal, now and then a line elsewhere."""

    def __init__(self, choices: Choices, cells: dict[tuple[str, str, int], Cell]) -> None:
        super().__init__()
        self.choices, self.cells = choices, cells
        self.states: dict[Path, str] = {}  # of a cell that runs or failed
        self.accuracies: dict[Path, float] = {}
        self.started: dict[Path, tuple[float, float]] = {}

    def __enter__(self) -> Board:
        self.begin()
        return self

    def running(self, cells: Sequence[Cell], progress: Progress) -> None:
        """Note where the cells stand, and how long they will take."""
        now = time.monotonic()
        began, first = self.started.setdefault(cells[0].out, (now, progress.worked))
        made = progress.worked - first
        left = (now - began) / made * (progress.steps - progress.worked) if made > 0 else None
        state = f"step {progress.step}" + (f", {duration(left)} left" if left is not None else "")
        for cell in cells:
            self.states[cell.out] = state
        known = len(set(self.cells.values()))
        self.show(f"{len(self.accuracies)} of {known} runs done; {len(cells)} running: {state}")

    def finished(self, done: Done) -> None:
        """Note what became of a cell."""
        if done.results is None:
            self.states[done.cell.out] = "failed"
        else:
            self.states.pop(done.cell.out, None)
            self.accuracies[done.cell.out] = 100 * done.results["unseen"][MEASURE]["mean"]
        self.show("")

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
