"""Signs of life: a process that dies ends the run in all others, soon and with one error.

A process that waits for a message waits for ever where the other side is dead, and cannot even be interrupted. So
a thread of each process gives a sign of life to a store that all of them reach, once a second. The first process
looks at the signs of all others, and they at its: that is enough, and costs little however many they are. Signs
are counted, not timed, so that neither clocks nor a pause of the whole machine count as a death.

What ends the run is posted in the store once: the process that posted it prints it, all others end silently.
"""

import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from metavib.core.foreign_text import visible

PERIOD = 1.0  # seconds between two signs of life
UNBORN = 600  # periods within which the first sign must come: every process starts Python, and imports torch
SILENT = 30  # periods without a sign after which a process counts as dead
ALARMED = 10  # the same once something went wrong: a message failed, or torchrun told us to end
GRACE = 3.0  # seconds in which the main thread may end the process by itself
LEFT = b"left"


class Verdict(NamedTuple):
    """Why the run ends, and which process says so."""

    by: int
    text: str


class Watch:
    """Shows the others that this process lives, and ends it where the run has come to an end elsewhere."""

    def __init__(self, store: Any, rank: int, size: int, local_rank: int = 0) -> None:
        """`store` is a torch.distributed.Store."""
        self.store, self.rank, self.size, self.local_rank = store, rank, size, local_rank
        self.advice: Callable[[], str] = lambda: "The same command begins again."
        self.asked_to_stop = False  # by a signal
        self.alarmed = False
        self.verdict: Verdict | None = None
        self._found = threading.Event()
        self._main_is_here = threading.Event()
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="metavib-watch", daemon=True)

    def start(self) -> None:
        """Give signs of life from now on."""
        self.store.set(f"host/{self.rank}", socket.gethostname())
        self.store.set(f"alive/{self.rank}", "0")  # at once: who dies in the next second was here
        self._thread.start()

    def leave(self) -> None:
        """This process ends in good order."""
        self._leaving.set()
        self._thread.join()
        self.store.set(f"alive/{self.rank}", LEFT)

    def heard(self, seconds: float) -> Verdict | None:
        """Why the run ends, if that becomes known in so many seconds. From here on the main thread ends us."""
        self._main_is_here.set()
        self._found.wait(seconds)
        return self.verdict

    def post(self, text: str) -> Verdict:
        """Say why the run ends; the verdict is that of whoever said it first."""
        posted = self.store.compare_set("verdict", "", json.dumps(Verdict(self.rank, text)))
        return Verdict(*json.loads(posted))

    def name(self, rank: int) -> str:
        """A process, in words."""
        host = self.store.get(f"host/{rank}").decode() if self.store.check([f"host/{rank}"]) else "?"
        return f"process {rank} of {self.size}, on {host}"

    def _watch(self) -> None:
        others = range(1, self.size) if self.rank == 0 else [0]
        seen = dict.fromkeys(others, b"")
        missed = dict.fromkeys(others, 0)
        number = 0
        while not self._leaving.wait(PERIOD):
            number += 1
            try:
                verdict = self._look(number, seen, missed)
            except RuntimeError:  # the store is gone, and torchrun, which held it, with it
                # Nobody can agree any more on who says so: one process of each machine does.
                speaker = self.rank if self.local_rank == 0 else -1
                verdict = Verdict(speaker, f"torchrun was stopped, or its machine is lost. {self.advice()}")
            if verdict is not None:
                self.verdict = verdict
                self._found.set()
                if not self._main_is_here.wait(GRACE):
                    end_at_once(1, verdict.text if verdict.by == self.rank else None)
                return

    def _look(self, number: int, seen: dict[int, bytes], missed: dict[int, int]) -> Verdict | None:
        """Give a sign, and look for those of the others."""
        self.store.set(f"alive/{self.rank}", str(number))
        if self.alarmed:
            self.store.set("alarm", "1")
        if self.store.check(["verdict"]):
            return Verdict(*json.loads(self.store.get("verdict")))
        patience = ALARMED if self.store.check(["alarm"]) else SILENT
        for other, before in seen.items():
            key = f"alive/{other}"
            sign = self.store.get(key) if self.store.check([key]) else b""
            missed[other] = missed[other] + 1 if sign == before else 0
            seen[other] = sign
            if sign != LEFT and missed[other] >= (patience if sign else UNBORN):
                return self.post(
                    f"{self.name(other)}, stopped: it was killed, ran out of memory or lost its machine. "
                    + self.advice()
                )
        return None


def end_at_once(status: int, text: str | None = None) -> None:
    """End the process from any thread: the interpreter's own end would wait for messages that never come."""
    if text is not None:
        if sys.stderr.isatty():
            sys.stderr.write("\x1b[?25h\n")  # a bar that moved hid the cursor
        sys.stderr.write(f"metavib: {visible(text)}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
