"""The transport of a connection: a head goes with its body, and the end comes also where nobody reads."""

from __future__ import annotations

import asyncio
from typing import Any

_BEGINNING = b"HTTP/1.1 "  # of every answer


class Gathered:
    """A transport that sends what is written in one turn of the event loop at once: a head with its body.

    Of two writes the first one would wake the client for nothing, while all threads of the server wait.
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, close_seconds: float
    ) -> None:
        self._transport, self._loop, self._close_seconds = transport, loop, close_seconds
        self._written: list[bytes] = []
        self._begun = False
        self.is_closing = transport.is_closing  # asked for at every request, where __getattr__ takes a while

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send this, with what else is written now."""
        if not self._written:
            self._loop.call_soon(self._send)
        self._written.append(data)

    def begin(self) -> None:
        """Send the first bytes of the next answer, which are always the same: who has gone will say so."""
        if not self._begun and not self._written:
            self._begun = True
            self._transport.write(_BEGINNING)

    def close(self) -> None:
        """End the connection once all has been sent, or was not taken for so long."""
        self._send()
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self._loop.call_later(self._close_seconds, self._transport.abort)

    def abort(self) -> None:
        """End the connection now."""
        self._written.clear()
        self._transport.abort()

    def _send(self) -> None:
        if self._written and not self._transport.is_closing():
            if self._begun:
                self._begun = False
                self._written[0] = self._written[0].removeprefix(_BEGINNING)
            self._transport.writelines(self._written)
        self._written.clear()
