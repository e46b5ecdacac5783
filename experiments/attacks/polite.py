"""The second client: one PNG after the other, over a kept connection and over new ones in turns."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from dataclasses import dataclass

from attacks.place import digit

PATIENCE = 20.0  # seconds for an answer
PAUSE = 0.05  # seconds between two requests


@dataclass(frozen=True)
class Asked:
    """One request."""

    began: float
    seconds: float
    status: int  # 0 where there was no answer


class Polite:
    """Asks in a thread of its own, until it is told to stop."""

    def __init__(self, port: int) -> None:
        self._port, self._image = port, digit()
        self.asked: list[Asked] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Polite:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        kept = self._connection()
        for number in range(10**9):
            if self._over.wait(PAUSE):
                break
            if number % 2:
                with contextlib.closing(self._connection()) as own:
                    self._ask(own)
            else:
                self._ask(kept)
        kept.close()

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)

    def _ask(self, connection: http.client.HTTPConnection) -> None:
        began, status = time.monotonic(), 0
        try:
            try:
                status = self._answer(connection)
            except (http.client.RemoteDisconnected, ConnectionError):
                # A server may end a connection between two requests: every client then asks again over a new one.
                connection.close()
                status = self._answer(connection)
        except (OSError, http.client.HTTPException):
            connection.close()
        self.asked.append(Asked(began, time.monotonic() - began, status))

    def _answer(self, connection: http.client.HTTPConnection) -> int:
        connection.request("POST", "/predict", self._image, {"Content-Type": "image/png"})
        answer = connection.getresponse()
        answer.read()
        return answer.status
