"""Connections of uvicorn's with limits that it does not have: on heads, on their number, on what is not read.

A connection answers one request after the other. What comes early lies unparsed until its turn, after those of
clients that wait for their answers, and meanwhile the connection is not read: a client which sends a thousand
requests at once costs no more than one. A client
that does not take its answers is given up after a while. Where too many connections are open, those go first that
have been quiet longest, of the address that has most.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from typing import TYPE_CHECKING, Any

from metavib.serving.http.crowding import make_room
from metavib.serving.http.departure import Departure
from metavib.serving.http.guards import HEADERS, json_of
from metavib.serving.http.limits import Budget, Limits
from metavib.serving.http.pacing import Later
from metavib.serving.http.refusals import Problem, Refusal, busy
from metavib.serving.http.transport import Gathered
from metavib.serving.http.uploads import WHEN_GONE

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 4096  # of a head that are parsed before its headers are counted
# Of a chunked body that are parsed in a turn, where its chunks are small or large.
CHUNKED_BYTES = (512, 65_536)
FEW_CHUNKS = 8  # each takes a call
MANY_CHUNKS, BYTES_A_CHUNK = 256, 64  # after so many chunks of a body they must have so many bytes on average
LOOK_SECONDS = 0.2  # between two looks whether a client that ended its side is still there

_NOT_HTTP = Problem("this is not HTTP/1.1", "Use an HTTP client such as curl or a browser.")
_CUT_OFF = Problem("the request was cut off", "Send the whole request before you end the connection.")
_SMALL_CHUNKS = Problem(
    f"the body comes in chunks of less than {BYTES_A_CHUNK} bytes",
    "Send larger chunks, or the length of the body and no chunks.",
)
_END_OF_HEAD = b"\r\n\r\n"
_COMMON = b"".join(b"%s: %s\r\n" % header for header in HEADERS)


def limited_connection(limits: Limits) -> type[HttpToolsProtocol]:
    """The class of connections with these limits."""
    from uvicorn.protocols.http.flow_control import FlowControl
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    early, later = Budget(limits.early_bytes), Later()
    moment = itertools.count().__next__

    class Flow(FlowControl):
        """Reads on only where nothing lies unparsed."""

        held = False

        def resume_reading(self) -> None:
            if not self.held:
                super().resume_reading()

    class Connection(HttpToolsProtocol):
        """One client's connection."""

        flow: Flow

        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self._head_timer: asyncio.TimerHandle | None = None
            self._send_timer: asyncio.TimerHandle | None = None
            self._without_body = 0  # bytes since the last of a body: head, trailers, chunk extensions
            self._in_head = self._in_body = False
            self._left: int | None = 0  # bytes of a body that have not come; None where it is chunked
            self._chunked, self._chunks = CHUNKED_BYTES[0], 0
            self._spare = 0  # bytes that the chunks of a body so far have more than they must
            self._held, self._at = b"", 0  # what came early, and where its unparsed part begins
            self._early = early.account()
            self._ended = False  # by the client, which may still wait for answers
            self._departure = Departure()
            self.last = 0  # moment at which it last sent something

        # --- from the event loop ------------------------------------------------------------------------------

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(Gathered(transport, self.loop, limits.send_seconds))  # type: ignore[arg-type]
            self.flow = Flow(self.transport)
            self.last = moment()
            room = len(self.connections) <= limits.connections
            if not room and not make_room(self, self.connections, limits.connections):  # type: ignore[arg-type]
                self._refuse_as(busy("too many connections are open"))
            else:
                self._wait_for_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            self._stop_sending()
            self._forget_early()
            super().connection_lost(exc)
            self._departure.happens()

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            self.last = moment()
            if self._held:  # it was under way when reading was paused
                self._keep(self._held[self._at :] + data, 0)
            else:
                self._parse(data, 0)

        def eof_received(self) -> bool:  # type: ignore[override]
            self._ended = True
            if self._answering():
                if not self.cycle.response_started:
                    self.transport.begin()  # type: ignore[attr-defined]
                    self._look()
                return True  # it has ended its own side, and may wait for its answer
            if self._in_head or self._in_body:
                self._refuse(400, _CUT_OFF)
            self.transport.close()  # with what was written in this turn
            return True

        def pause_writing(self) -> None:
            super().pause_writing()
            if self._send_timer is None:
                self._send_timer = self.loop.call_later(limits.send_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._stop_sending()

        # --- what has come ------------------------------------------------------------------------------------

        def _answering(self) -> bool:
            """Whether a whole request has come whose answer has not gone."""
            return self.cycle is not None and not self.cycle.response_complete and not self._in_body

        def _parse(self, data: bytes, at: int) -> None:
            """From there on: one request, in parts whose length says how much there is to do."""
            size = len(data)
            while at < size:
                if self._answering():
                    self._keep(data, at)
                    return
                end = self._end_of_part(data, at)
                self._without_body += end - at
                super().data_received(data if at == 0 and end == size else data[at:end])
                if self.transport.is_closing() or self._is_too_much():
                    return
                at = end
                if self._left is None and self._in_body and at < size:
                    self._keep(data, at)  # the others' turn
                    later.call(self.loop, self._go_on)
                    return
            if self._in_head:
                self._wait_for_head()
            if self._ended and not self._answering():
                if self._in_head or self._in_body:
                    self._refuse(400, _CUT_OFF)
                self.transport.close()

        def _end_of_part(self, data: bytes, at: int) -> int:
            """The end of a head or body, or of what is parsed of it at a time."""
            if not self._in_body:
                found = data.find(_END_OF_HEAD, at, at + HEAD_BYTES)
                return found + 4 if found >= 0 else min(len(data), at + HEAD_BYTES)
            if self._left is None:
                smallest, largest = CHUNKED_BYTES
                self._chunked = min(2 * self._chunked, largest) if self._chunks <= FEW_CHUNKS else smallest
                self._chunks = 0
                return min(len(data), at + self._chunked)
            end = min(len(data), at + max(1, self._left))
            self._left -= end - at
            return end

        def _is_too_much(self) -> bool:
            """Whether it was refused for what has come of it."""
            if self._left is None and self._chunks_are_too_small():
                return True
            if self._without_body > limits.header_bytes:
                what = f"the head of the request has more than {limits.header_bytes:,} bytes"
                self._refuse(431, Problem(what, "Send fewer or shorter headers, and no long address."))
                return True
            if self._in_head and len(self.headers) > limits.headers:
                self._too_many_headers()
                return True
            return False

        def _chunks_are_too_small(self) -> bool:
            """A chunk takes as long as a kilobyte: a body in millions of them would keep the others waiting."""
            if self._in_body and self._spare < 0:
                self._refuse(413, _SMALL_CHUNKS)
                return True
            return False

        def _keep(self, data: bytes, at: int) -> None:
            """For later; the connection is not read before."""
            self._held, self._at = data, at
            self.flow.held = True
            self.flow.pause_reading()
            try:
                self._early.take(len(data) - self._early.taken)
            except Refusal as refusal:  # all clients together sent too much early
                self._forget_early()
                if self._in_body:
                    self._refuse_as(refusal)
                else:
                    self.cycle.keep_alive = False  # this one gets its answer and no other

        def _go_on(self) -> None:
            if self._held and not self.transport.is_closing():
                data, at = self._held, self._at
                self._held = b""
                self.flow.held = False
                self._parse(data, at)
                if not self._held:
                    self._forget_early()
                    if not self.transport.is_closing():
                        self.flow.resume_reading()

        def _forget_early(self) -> None:
            self._held = b""
            self._early.give_back()

        # --- from the parser ----------------------------------------------------------------------------------

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.scope[WHEN_GONE] = self._departure.when_gone  # type: ignore[literal-required]
            self._in_head = True

        def on_headers_complete(self) -> None:
            self._stop_waiting()
            self._without_body, self._in_head, self._in_body, self._left = 0, False, True, 0
            self._spare = MANY_CHUNKS * BYTES_A_CHUNK
            for name, value in self.headers:
                if name == b"content-length":
                    self._left = int(value)
                elif name == b"transfer-encoding":
                    self._left = None
                    break
            if len(self.headers) > limits.headers:
                self._too_many_headers()
            else:
                super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            self._without_body = 0
            self._chunks += 1
            self._spare += len(body)
            if not self.transport.is_closing():
                super().on_body(body)

        def on_chunk_header(self) -> None:
            self._spare -= BYTES_A_CHUNK

        def on_message_complete(self) -> None:
            self._without_body, self._in_body = 0, False
            if not self.transport.is_closing():
                super().on_message_complete()

        def send_400_response(self, msg: str) -> None:
            self._refuse(400, _NOT_HTTP)

        # --- answers ------------------------------------------------------------------------------------------

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self._held:
                later.call(self.loop, self._go_on)  # after the others
            elif self._ended and not self._answering():
                self.transport.close()

        def shutdown(self) -> None:
            """The server stops: what is being answered is answered, and no more."""
            if self._in_head:
                self._refuse_as(busy("the server is stopping"))
            else:
                super().shutdown()

        def _look(self) -> None:
            """A client that has gone altogether resets the connection when the first bytes of an answer come."""
            if self.transport.is_closing() or not self._answering() or self.cycle.response_started:
                return
            link = self.transport.get_extra_info("socket")
            if link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self.transport.abort()
            else:
                self.loop.call_later(LOOK_SECONDS, self._look)

        def may_go(self) -> bool:
            """Whether nothing is computed for it, or it does not take what was."""
            return not self._answering() or self._stuck()

        def _stuck(self) -> bool:
            return self.transport.get_write_buffer_size() > 0

        def make_way(self) -> None:
            """A new connection needs the place."""
            if self._stuck():
                self.transport.abort()
            elif self._in_head or self._in_body or self.cycle is None:
                self._refuse_as(busy("too many connections are open"))
            else:
                self.transport.close()

        # --- heads that do not come, answers that are not taken -----------------------------------------------

        def _wait_for_head(self) -> None:
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(limits.header_seconds, self._head_is_late)

        def _stop_waiting(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _stop_sending(self) -> None:
            if self._send_timer is not None:
                self._send_timer.cancel()
                self._send_timer = None

        def _head_is_late(self) -> None:
            self._head_timer = None
            if self.transport.is_closing():
                return
            if self._answering():
                self._wait_for_head()
                return
            what = f"no whole request came within {limits.header_seconds:g} s"
            self._refuse(408, Problem(what, "Send the request at once after connecting."))

        def _too_many_headers(self) -> None:
            problem = Problem(f"the request has more than {limits.headers} headers", "Send fewer headers.")
            self._refuse(431, problem)

        def _refuse_as(self, refusal: Refusal) -> None:
            headers = "".join(f"{name}: {value}\r\n" for name, value in refusal.headers.items())
            self._refuse(refusal.status, refusal.problem, headers)

        def _refuse(self, status: int, problem: Problem, header: str = "") -> None:
            """Say it and close; where an answer is under way, only close."""
            if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
                content = json_of(problem)
                head = f"HTTP/1.1 {int(status)} \r\ncontent-type: application/json\r\nconnection: close\r\n"
                length = f"{header}content-length: {len(content)}\r\n"
                self.transport.write(b"".join((head.encode(), length.encode(), _COMMON, b"\r\n", content)))
            self.transport.close()

    return Connection
