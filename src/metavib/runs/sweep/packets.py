"""Cells in parcels that a worker takes: those that pay to be stacked together, all others one by one.

A packet and what its worker says are plain JSON, so that any engine can carry them; nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from metavib.runs.capacity import WIDEST, pays
from metavib.runs.cells import Cell, stackable_groups
from metavib.training.experiment import recorded_experiment
from metavib.training.run_directory import members_of
from metavib.training.stacks import begun_beside


@dataclass(frozen=True)
class PacketOptions:
    """How the cells of a packet are trained; none of it decides what comes out."""

    device: str = "auto"
    data: str | None = None
    skip_bad: bool = False
    checkpoint_seconds: float = 30.0
    batch: int | None = None  # None: as many as fit, where that pays
    blind: bool = False
    threads: int | None = None  # of a CPU, of each worker
    compiled: bool | None = False  # steps, by torch.compile; None where that is done if it pays
    own: str | None = None  # the network of the user's own, `module:function`, as it was typed


@dataclass(frozen=True)
class Packet:
    """Cells that one worker trains, and how often workers have tried."""

    cells: tuple[Cell, ...]
    options: PacketOptions
    attempt: int = 0

    def again(self) -> Packet:
        """The next attempt. Cells that have finished by then are passed over, the others resumed."""
        return replace(self, attempt=self.attempt + 1)

    def to_json(self, place: Callable[[Path], Path] = lambda path: path) -> dict[str, Any]:
        """Plain values; `place` says where a cell lies for the worker."""
        cells = [{"experiment": c.experiment.to_json(), "out": str(place(c.out))} for c in self.cells]
        return {"cells": cells, "options": vars(self.options)}


def packet_from(values: dict[str, Any]) -> Packet:
    """The packet that `to_json` described."""
    cells = tuple(Cell(recorded_experiment(own["experiment"]), Path(own["out"])) for own in values["cells"])
    return Packet(cells, PacketOptions(**values["options"]))


def packets_of(
    cells: Sequence[Cell], options: PacketOptions, device: torch.device, workers: int
) -> list[Packet]:
    """Divide the cells among workers; stacks that an earlier call has begun stay together."""
    waiting = {cell.experiment.identity(): cell for cell in cells}
    found = []
    for members in begun_beside(cell.out for cell in cells):
        mine = [waiting.pop(one) for one in members_of(members) if one in waiting]
        if mine:
            found.append(mine)
    for group in stackable_groups(list(waiting.values())):
        found += _parts(group, options, device, workers)
    order = {cell.out: number for number, cell in enumerate(cells)}
    found.sort(key=lambda part: order[part[0].out])  # as they were asked for: the first trials first
    return [Packet(tuple(part), options) for part in found]


def _parts(
    group: Sequence[Cell], options: PacketOptions, device: torch.device, workers: int
) -> Iterator[list[Cell]]:
    if options.batch is not None:
        width = options.batch
    elif pays(group[0].experiment, device):
        width = min(WIDEST, -(-len(group) // workers))  # memory may allow less: the worker finds out
    else:
        width = 1
    for first in range(0, len(group), width):
        yield list(group[first : first + width])
