"""The work on a packet, whichever engine brought it: train its cells, and report progress."""

import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

from metavib.core.device import resolve_device
from metavib.core.errors import UserError
from metavib.nn.own_network import own_network
from metavib.runs.cells import Cell
from metavib.runs.grid import CellResult, GridObserver, run_grid
from metavib.runs.one_run import ExecutionContext
from metavib.runs.sweep.packets import packet_from
from metavib.training.loop import Stopped, TrainingProgress

Message = dict[str, Any]
SECONDS_BETWEEN_NEWS = 0.5


def work(values: dict[str, Any], emit: Callable[[Message], None], stop: Callable[[], bool]) -> None:
    """Train the packet. The last message is `over`, `stopped`, `refused` (for the user) or `fault` (ours)."""
    try:
        packet = packet_from(values)
        options = packet.options
        context = ExecutionContext(
            device=resolve_device(options.device),
            data_root=Path(options.data) if options.data else None,
            skip_bad=options.skip_bad,
            checkpoint_seconds=options.checkpoint_seconds,
            blind=options.blind,
            threads=options.threads,
            compiled=options.compiled,
            own=own_network(options.own),
            stop=stop,
            say=lambda text: emit({"kind": "said", "text": text}),
        )
        run_grid(packet.cells, context, batch=options.batch, observer=_Reporter(emit))
        emit({"kind": "over"})
    except Stopped:
        emit({"kind": "stopped"})
    except UserError as error:
        emit({"kind": "refused", "why": str(error)})
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            why = f"cannot use {error.filename}: {error.strerror}. Check the path and its permissions."
            emit({"kind": "refused", "why": why})
        else:
            emit({"kind": "fault", "trace": traceback.format_exc()})


@final
class _Reporter(GridObserver):
    """Tells of the cells by the names of their folders, which are the same for whoever listens."""

    def __init__(self, emit: Callable[[Message], None]) -> None:
        self.emit = emit
        self.told = -SECONDS_BETWEEN_NEWS

    def running(self, cells: Sequence[Cell], progress: TrainingProgress) -> None:
        now = time.monotonic()
        if now - self.told >= SECONDS_BETWEEN_NEWS:
            self.told = now
            names = [cell.out.name for cell in cells]
            self.emit({"kind": "at", "cells": names, "step": progress.step, "steps": progress.steps})

    def finished(self, done: CellResult) -> None:
        """The results themselves lie in the cell's folder."""
        self.emit({"kind": "done", "cell": done.cell.out.name, "failure": done.failure})
