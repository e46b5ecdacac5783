"""A stop in the middle of an attack: how long it takes, and what becomes of the polite requests in flight."""

from __future__ import annotations

import contextlib
import http.client
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from attacks.place import digit
from attacks.server import Served

CLIENTS = 16
PATIENCE = 60.0  # seconds for an answer
ANSWERS = {"200", "503"}


@dataclass(frozen=True)
class Stop:
    """What came of a SIGTERM."""

    seconds: float  # from the signal to the end of the process
    status: int
    in_flight: dict[str, int]  # by their status: requests that had no answer yet when the signal came

    @property
    def answered(self) -> bool:
        """Whether every request that was in flight got its answer or a 503."""
        return set(self.in_flight) <= ANSWERS


class InFlight:
    """Clients that ask again as soon as they are answered, so that so many requests are always under way."""

    def __init__(self, port: int) -> None:
        self._port, self._image = port, digit()
        self._asked: list[tuple[float, float, str]] = []  # when it was sent, when it ended, its status
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(CLIENTS)]

    def __enter__(self) -> InFlight:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def at(self, moment: float) -> dict[str, int]:
        """What became of those that were under way then, once all of them have ended."""
        return dict(Counter(status for sent, ended, status in self._asked if sent < moment < ended))

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        with contextlib.closing(connection):
            while not self._over.is_set():
                sent = time.monotonic()
                try:
                    connection.request("POST", "/predict", self._image, {"Content-Type": "image/png"})
                    sent = time.monotonic()
                    answer = connection.getresponse()
                    answer.read()
                    status = str(answer.status)
                except (OSError, http.client.HTTPException):
                    connection.close()
                    status = "no answer"
                    self._over.wait(0.05)
                self._asked.append((sent, time.monotonic(), status))


def stopped(server: Served, most: float, prepare: Callable[[], None] = lambda: None) -> Stop:
    """Send SIGTERM while requests are in flight; after so many seconds the process is killed."""
    with InFlight(server.port) as clients:
        prepare()
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        try:
            status = server.process.wait(most)
        except subprocess.TimeoutExpired:
            server.process.kill()
            status = server.process.wait()
        ended = time.monotonic()
    return Stop(ended - began, status, clients.at(began))
