"""The live table of `metavib sweep`: how many runs of each algorithm and target are done or have failed."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import final

from metavib import atomic
from metavib.cells import Cell
from metavib.commands.live_table import LiveTable
from metavib.grid import Done
from metavib.sweep.engine import Listener
from metavib.sweep.plan import Plan
from metavib.terminal import table


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

    def __enter__(self) -> SweepBoard:
        self.begin()
        return self

    def expect(self, who: Mapping[Cell, tuple[str, str]], stage: str) -> None:
        """A new stage, with these cells."""
        self.stage = stage
        self.who = {cell.out: key for cell, key in who.items()}
        self.steps, self.over = {}, {}
        self.say(f"{stage}: {len(self.who)} run{'s' if len(self.who) > 1 else ''}.")

    def running(self, cells: Sequence[Cell], step: int, steps: int) -> None:
        """Note where the cells stand."""
        for cell in cells:
            self.steps[cell.out] = f"step {step} of {steps}"
        self._show()

    def waiting(self, cells: Sequence[Cell]) -> None:
        """Their worker was lost."""
        for cell in cells:
            self.steps.pop(cell.out, None)
        self._show()

    def finished(self, done: Done) -> None:
        """Note what became of a cell."""
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
        """The table as it stands."""
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
