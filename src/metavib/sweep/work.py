"""What a worker does with a packet, whichever engine brought it: train its cells and say how it goes."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

from metavib.cells import Cell
from metavib.device import resolve_device
from metavib.errors import UserError
from metavib.grid import Done, Watch, run_grid
from metavib.runner import Surroundings
from metavib.sweep.packets import packet_from
from metavib.trainer import Progress, Stopped

Message = dict[str, Any]
SECONDS_BETWEEN_NEWS = 0.5


def work(values: dict[str, Any], emit: Callable[[Message], None], stop: Callable[[], bool]) -> None:
    """Train the packet. The last message is `over`, `stopped`, `refused` (for the user) or `fault` (ours)."""
    try:
        packet = packet_from(values)
        terms = packet.terms
        surroundings = Surroundings(
            device=resolve_device(terms.device),
            data_root=Path(terms.data) if terms.data else None,
            skip_bad=terms.skip_bad,
            checkpoint_seconds=terms.checkpoint_seconds,
            blind=terms.blind,
            threads=terms.threads,
            stop=stop,
            say=lambda text: emit({"kind": "said", "text": text}),
        )
        run_grid(packet.cells, surroundings, batch=terms.batch, watch=_Reporter(emit))
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
class _Reporter(Watch):
    """Tells of the cells by the names of their folders, which are the same for whoever listens."""

    def __init__(self, emit: Callable[[Message], None]) -> None:
        self.emit = emit
        self.told = -SECONDS_BETWEEN_NEWS

    def running(self, cells: Sequence[Cell], progress: Progress) -> None:
        """Now and then."""
        now = time.monotonic()
        if now - self.told >= SECONDS_BETWEEN_NEWS:
            self.told = now
            names = [cell.out.name for cell in cells]
            self.emit({"kind": "at", "cells": names, "step": progress.step, "steps": progress.steps})

    def finished(self, done: Done) -> None:
        """The results themselves lie in the cell's folder."""
        self.emit({"kind": "done", "cell": done.cell.out.name, "failure": done.failure})
