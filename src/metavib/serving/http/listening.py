"""An address, and a server that answers at it until it is told to stop.

It ends within its time, whatever is being decoded, and every request gets its answer or a 503.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from metavib.core.errors import UserError, require_installed
from metavib.serving.http.connection import limited_connection
from metavib.serving.http.guards import Guard
from metavib.serving.http.limits import Limits

UNSENT_BYTES = 131_072  # that the kernel takes of an answer before its client reads
UNREAD_BYTES = 49_152  # that the kernel takes of a request before it is read, and has when a client goes


def listen(host: str, port: int) -> socket.socket:
    """A socket at the address; port 0 takes any that is free."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Its connections have these too.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNSENT_BYTES)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, UNREAD_BYTES)
            listener.bind(address)
        except BaseException:
            listener.close()
            raise
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"cannot listen on {host} port {port}: {reason}. Choose another --host or --port."
        ) from error
    return listener


def address_of(listener: socket.socket) -> str:
    """The URL of the listener, for a browser."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def settings(app: Guard, limits: Limits) -> Any:
    """How uvicorn is to serve the application."""
    require_installed("uvicorn", "the server needs uvicorn", extra="serve")
    import uvicorn

    return uvicorn.Config(
        app,
        http=limited_connection(limits),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=limits.idle_seconds,
    )


def server_of(app: Guard, limits: Limits, on_start: Callable[[], None] = lambda: None) -> Any:
    """A server that answers until it is told to stop."""
    config = settings(app, limits)
    import uvicorn

    class Server(uvicorn.Server):
        """uvicorn's, which would end by the signal itself; to be told to stop is not a failure."""

        def handle_exit(self, sig: int, frame: Any) -> None:
            self.force_exit = self.should_exit  # at the second time
            self.should_exit = True

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            on_start()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            for listening in self.servers:
                listening.close()
            for listener in sockets or []:
                listener.close()
            await stop(self, limits.stop_seconds)

    return Server(config)


def serve(app: Guard, listener: socket.socket, limits: Limits, on_start: Callable[[], None]) -> None:
    """Answer until SIGTERM or Ctrl-C; then requests that are being answered are answered, and no more."""
    server_of(app, limits, on_start).run([listener])


if TYPE_CHECKING:
    import uvicorn

ARRIVING_SECONDS = 0.1  # for what has reached this machine when the server is told to stop
REFUSING_SECONDS = 3.0  # for the 503s to be sent
LAST_SECONDS = 5.0  # for the application to end
EXIT_SECONDS = 5.0  # for the process to end, also on a busy machine


async def stop(server: uvicorn.Server, seconds: float) -> None:
    """Wait for answers that are under way; refuse what is not ready in time; end the application."""
    state: Any = server.server_state
    await asyncio.sleep(min(ARRIVING_SECONDS, seconds))
    for connection in list(state.connections):
        connection.shutdown()
    if not await _done(server, max(0.0, seconds - REFUSING_SECONDS - LAST_SECONDS - EXIT_SECONDS)):
        for connection in list(state.connections):
            if connection.cycle is not None and connection.cycle.response_started:
                connection.transport.abort()  # half an answer that is not taken
        await asyncio.sleep(0)
        for task in list(state.tasks):
            task.cancel()  # the guard answers with a 503
        if not await _done(server, REFUSING_SECONDS):
            for connection in list(state.connections):
                connection.transport.abort()
    if not server.force_exit:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_SECONDS):
                await server.lifespan.shutdown()


async def _done(server: uvicorn.Server, seconds: float) -> bool:
    """Whether all was answered within that time."""
    state, loop = server.server_state, asyncio.get_running_loop()
    end = loop.time() + seconds
    while (state.connections or state.tasks) and not server.force_exit:
        if loop.time() > end:
            return False
        await asyncio.sleep(0.05)
    return True
