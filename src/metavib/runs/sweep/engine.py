"""Where cells are trained: an engine has workers, starts packets on them and hears what became of them.

`train_all` is the same for every engine: it keeps workers busy, gives a packet whose worker was lost to another
one, and stops when it is asked to.
"""

import collections
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from metavib.core.errors import UserError
from metavib.runs.cells import Cell
from metavib.runs.checks import finished_already
from metavib.runs.grid import CellResult
from metavib.runs.sweep.packets import Packet, PacketOptions, packets_of
from metavib.training.loop import Stopped
from metavib.training.run_directory import RunDirectory

RETRIES = 3


@dataclass(frozen=True)
class News:
    """A message about a packet: one of `work`, or {"kind": "lost", "why": ...}."""

    packet: Packet
    message: dict[str, Any]


class Engine(ABC):
    """Workers, on this machine or on many."""

    device: torch.device  # of the workers, for whether stacking pays

    @property
    @abstractmethod
    def workers(self) -> int:
        """How many packets can be trained at a time."""

    @abstractmethod
    def has_room(self) -> bool:
        """Whether one more packet would be begun."""

    @abstractmethod
    def start(self, packet: Packet) -> None:
        """Have a worker train the packet."""

    @abstractmethod
    def news(self) -> list[News]:
        """Return new messages; wait a moment where there are none."""

    @abstractmethod
    def stop(self) -> None:
        """Let what is being trained come to a checkpoint."""

    @abstractmethod
    def close(self) -> None:
        """Let all workers go, at once."""


class Listener(ABC):
    """Shows the cells while they are trained."""

    @abstractmethod
    def running(self, cells: Sequence[Cell], step: int, steps: int) -> None:
        """These cells stand at this step."""

    @abstractmethod
    def waiting(self, cells: Sequence[Cell]) -> None:
        """These cells were being trained, and wait for another worker."""

    @abstractmethod
    def finished(self, done: CellResult) -> None:
        """This cell has results, or will have none."""

    @abstractmethod
    def log(self, text: str) -> None:
        """A line for the log."""

    @abstractmethod
    def warn(self, text: str) -> None:
        """A line for the log and for the user."""


def train_all(
    cells: Sequence[Cell],
    options: PacketOptions,
    engine: Engine,
    listener: Listener,
    *,
    retries: int = RETRIES,
    stop: Callable[[], bool] = lambda: False,
) -> dict[Path, CellResult]:
    """Train all cells, and return their outcomes by place. Finished cells are read and not trained again."""
    own = list(dict.fromkeys(cells))
    campaign = _Campaign(own, options, listener, retries)
    campaign.waiting.extend(packets_of(campaign.left, options, engine.device, engine.workers))
    while campaign.waiting or campaign.active:
        while campaign.waiting and engine.has_room():
            engine.start(campaign.waiting.popleft())
            campaign.active += 1
        for heard in engine.news():
            campaign.hear(heard.packet, heard.message)
        if stop():
            listener.log("asked to stop")
            engine.stop()
            raise Stopped(f"stopped with {len(campaign.done)} of {len(own)} runs done")
    return campaign.done


class _Campaign:
    """State of one call: the cells that are done, and the packets that wait or are away."""

    def __init__(
        self, cells: Sequence[Cell], options: PacketOptions, listener: Listener, retries: int
    ) -> None:
        self.cells, self.options, self.listener, self.retries = cells, options, listener, retries
        self.waiting: collections.deque[Packet] = collections.deque()
        self.active = 0
        self.done: dict[Path, CellResult] = {}
        for cell in cells:
            results = finished_already(RunDirectory(cell.out), cell.experiment, blind=options.blind)
            if results is not None:
                self._note(CellResult(cell, results, None))

    @property
    def left(self) -> list[Cell]:
        """The cells that are to be trained."""
        return [cell for cell in self.cells if cell.out not in self.done]

    def hear(self, packet: Packet, message: dict[str, Any]) -> None:
        """Act on a message."""
        kind = message["kind"]
        if kind == "said":
            self.listener.log(message["text"])
        elif kind == "at":
            named = [cell for cell in packet.cells if cell.out.name in message["cells"]]
            self.listener.running(named, message["step"], message["steps"])
        elif kind == "done":
            (cell,) = (cell for cell in packet.cells if cell.out.name == message["cell"])
            self._note(_what_became(cell, message["failure"], self.options))
        elif kind == "lost":
            self.active -= 1
            self._lost(packet, message["why"])
        elif kind == "refused":
            raise UserError(message["why"])
        elif kind == "fault":
            raise RuntimeError(f"a worker broke down:\n{message['trace']}")
        else:
            assert kind in ("over", "stopped")
            self.active -= 1

    def _lost(self, packet: Packet, why: str) -> None:
        names = ", ".join(cell.out.name for cell in packet.cells)
        if packet.attempt < self.retries:
            self.waiting.append(packet.again())
            self.listener.waiting(packet.cells)
            self.listener.warn(f"{why}; {names} goes on from its last checkpoint.")
            return
        reason = f"its worker was lost {packet.attempt + 1} times; the last time, {why}"
        self.listener.warn(f"{names} is left out: {reason}")
        for cell in packet.cells:
            if cell.out not in self.done:
                self._note(CellResult(cell, None, reason))

    def _note(self, done: CellResult) -> None:
        self.done[done.cell.out] = done
        self.listener.finished(done)


def _what_became(cell: Cell, failure: str | None, options: PacketOptions) -> CellResult:
    if failure is not None:
        return CellResult(cell, None, failure)
    results = finished_already(RunDirectory(cell.out), cell.experiment, blind=options.blind)
    if results is None:
        raise RuntimeError(f"{cell.out} was said to be finished and has no results")
    return CellResult(cell, results, None)
