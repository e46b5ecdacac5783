"""Ctrl-C while something trains: it stops after a step, with a checkpoint."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from metavib.core.terminal import say


@contextlib.contextmanager
def stop_requested() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C (or a scheduler's SIGTERM) asked to stop; a second Ctrl-C does not wait."""
    if threading.current_thread() is not threading.main_thread():  # which alone hears of signals
        yield lambda: False
        return
    requested = False

    def request(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        requested = True
        say("\nmetavib: stopping after this step ...")
        signal.signal(signal.SIGINT, signal.default_int_handler)

    former = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: requested
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
