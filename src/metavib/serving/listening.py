"""An address, and a server that answers at it until it is told to stop."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from metavib.errors import UserError
from metavib.serving.connection import limited_connection
from metavib.serving.guards import Guard
from metavib.serving.limits import Limits
from metavib.serving.stopping import stop

UNSENT_BYTES = 131_072  # that the kernel takes of an answer before its client reads


def listen(host: str, port: int) -> socket.socket:
    """A socket at the address; port 0 takes any that is free."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDBUF, UNSENT_BYTES
            )  # its connections have it too
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
    """As a browser takes it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def settings(app: Guard, limits: Limits) -> Any:
    """How uvicorn is to serve the application."""
    try:
        import uvicorn
    except ModuleNotFoundError as error:
        raise UserError("the server needs uvicorn; run: pip install 'metavib[serve]'") from error
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
        """uvicorn's, which would end by the signal itself; to be told to stop is no failure."""

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
