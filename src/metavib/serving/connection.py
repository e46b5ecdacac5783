"""Connections of uvicorn's with limits that it does not have: the time and size of a head, and their number."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from metavib.serving.guards import json_of
from metavib.serving.limits import Limits
from metavib.serving.refusals import Problem, busy

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_NOT_HTTP = Problem("this is not HTTP/1.1", "Use an HTTP client such as curl or a browser.")


class Gathered:
    """A transport that sends what is written in one turn of the event loop at once: a head with its body.

    Of two writes the first one would wake the client for nothing, while all threads of the server wait.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._written: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send this, with what else is written now."""
        if not self._written:
            self._loop.call_soon(self._send)
        self._written.append(data)

    def close(self) -> None:
        """End the connection once all has been sent."""
        self._send()
        self._transport.close()

    def _send(self) -> None:
        if self._written and not self._transport.is_closing():
            self._transport.writelines(self._written)
        self._written.clear()


def limited_connection(limits: Limits) -> type[HttpToolsProtocol]:
    """The class of connections with these limits."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class Connection(HttpToolsProtocol):
        """What one client sends."""

        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self._timer: asyncio.TimerHandle | None = None
            self._without_body = 0  # bytes since the last of a body: head, trailers, chunk extensions

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(Gathered(transport, self.loop))  # type: ignore[arg-type]
            if len(self.connections) > limits.connections:
                refusal = busy("too many connections are open")
                self._refuse(503, refusal.problem, f"retry-after: {refusal.headers['retry-after']}\r\n")
            else:
                self._wait_for_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            self._without_body += len(data)
            super().data_received(data)
            if self._without_body > limits.header_bytes and not self.transport.is_closing():
                self._refuse(
                    431,
                    Problem(
                        f"the head of the request has more than {limits.header_bytes:,} bytes",
                        "Send fewer or shorter headers, and no long address.",
                    ),
                )

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._wait_for_head()

        def on_headers_complete(self) -> None:
            self._stop_waiting()
            self._without_body = 0
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            self._without_body = 0
            super().on_body(body)

        def on_message_complete(self) -> None:
            self._without_body = 0
            super().on_message_complete()

        def send_400_response(self, msg: str) -> None:
            self._refuse(400, _NOT_HTTP)

        def _wait_for_head(self) -> None:
            if self._timer is None:
                self._timer = self.loop.call_later(limits.header_seconds, self._head_is_late)

        def _stop_waiting(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _head_is_late(self) -> None:
            self._timer = None
            if not self.transport.is_closing():
                self._refuse(
                    408,
                    Problem(
                        f"no whole request came within {limits.header_seconds:g} s",
                        "Send the request at once after connecting.",
                    ),
                )

        def _refuse(self, status: int, problem: Problem, header: str = "") -> None:
            """Say it and close; where an answer is under way, only close."""
            if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
                content = json_of(problem)
                head = f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\nconnection: close\r\n"
                self.transport.write(
                    f"{head}{header}content-length: {len(content)}\r\n\r\n".encode() + content
                )
            self.transport.close()

    return Connection
