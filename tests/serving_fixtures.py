"""A server on loopback, in a thread of the tests, and clients for it. A plugin: `conftest.py` names it."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import http.client
import io
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image
from places import PATIENCE


class Reply(NamedTuple):
    """What a server answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Running(NamedTuple):
    """A server that answers, and what is inside it."""

    address: str
    port: int
    service: Any

    def ask(
        self, method: str, path: str, body: Any = None, headers: Any = None, timeout: float = PATIENCE
    ) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return Reply(
                answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read()
            )

    def send(self, content: bytes, kind: str = "image/png", query: str = "") -> Reply:
        return self.ask("POST", f"/predict{query}", content, {"Content-Type": kind})

    def raw(self, data: bytes, timeout: float = PATIENCE) -> bytes:
        """What comes back until the server closes, for bytes that no client library would send."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as link:
            with contextlib.suppress(ConnectionError):
                link.sendall(data)
            received = b""
            with contextlib.suppress(ConnectionError):
                while chunk := link.recv(65536):
                    received += chunk
            return received


@pytest.fixture(scope="session")
def predictors(finished: Any) -> dict[str, Any]:
    """A small model in both modes."""
    from metavib.serving.predictor import MODES, load

    return {mode: load(finished.run, device="cpu", mode=mode) for mode in MODES}


@contextlib.contextmanager
def started(predictors: dict[str, Any], limits: Any, access: Any, shower: Any = None) -> Iterator[Running]:
    """A whole server: real sockets, uvicorn, threads."""
    from metavib.serving.http.listening import listen, server_of
    from metavib.serving.http.server import build_app
    from metavib.serving.http.service import Service

    service = Service(predictors, limits, shower)
    listener = listen("127.0.0.1", 0)
    server = server_of(build_app(service, access), limits)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    try:
        end = time.monotonic() + PATIENCE
        while not server.started and thread.is_alive() and time.monotonic() < end:
            time.sleep(0.01)
        assert server.started
        port = listener.getsockname()[1]
        yield Running(f"http://127.0.0.1:{port}", port, service)
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        # A connection that a test left open may be waited for; how a server stops is tested elsewhere.
        server.force_exit = True
        thread.join(PATIENCE)
        if thread.is_alive():
            faulthandler.dump_traceback(sys.__stderr__)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def running(predictors: dict[str, Any]) -> Iterator[Running]:
    """One server for all tests that need nothing special."""
    from metavib.serving.http.guards import access_for
    from metavib.serving.http.limits import Limits

    with started(predictors, Limits(), access_for("127.0.0.1", None, [], anyone=False)) as server:
        yield server


@pytest.fixture
def start(predictors: dict[str, Any]) -> Iterator[Callable[..., Running]]:
    """Starts a server with other limits, a token or another predictor."""
    from metavib.serving.http.guards import access_for
    from metavib.serving.http.limits import Limits

    with contextlib.ExitStack() as stack:

        def begin(
            limits: Any = None,
            token: str | None = None,
            predictors: Any = predictors,
            host: str = "localhost",
            shower: Any = None,
        ) -> Running:
            access = access_for(host, token, [], anyone=False)
            return stack.enter_context(started(predictors, limits or Limits(), access, shower))

        yield begin


class Gate:
    """Where batches wait until it is opened."""

    def __init__(self) -> None:
        self.open, self.entered = threading.Event(), threading.Event()
        self.sizes: list[int] = []


@pytest.fixture
def gated_server(start: Any, predictors: dict[str, Any]) -> Iterator[Callable[..., tuple[Running, Gate]]]:
    """Starts a server whose model computes when it is let."""
    from metavib.serving.predictor import Predictor

    gates = []

    def begin(limits: Any = None) -> tuple[Running, Gate]:
        gate, armed = Gate(), threading.Event()
        gates.append(gate)

        class Gated(Predictor):
            def __init__(self, like: Predictor) -> None:
                vars(self).update(vars(like))

            def classify(self, pixels: Any, classifiers: bool = True) -> Any:
                if armed.is_set():
                    gate.sizes.append(len(pixels))
                    gate.entered.set()
                    assert gate.open.wait(PATIENCE)
                return super().classify(pixels, classifiers)

        server = start(limits, predictors={"mean": Gated(predictors["mean"])})
        armed.set()
        return server, gate

    yield begin
    for gate in gates:
        gate.open.set()


@pytest.fixture(scope="session")
def image() -> Callable[..., bytes]:
    """The bytes of an image."""

    def make(size: int = 20, kind: str = "PNG", mode: str = "RGB", seed: int = 0) -> bytes:
        pixels = np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).convert(mode).save(file, kind)
        return file.getvalue()

    return make


def form(*parts: tuple[str, bytes], kind: str = "image/png", cut: str = "cut") -> tuple[bytes, str]:
    """A form of images by file name, and its content type."""
    body = b"".join(
        f'--{cut}\r\nContent-Disposition: form-data; name="image"; filename="{name}"\r\n'
        f"Content-Type: {kind}\r\n\r\n".encode()
        + content
        + b"\r\n"
        for name, content in parts
    )
    return body + f"--{cut}--\r\n".encode(), f"multipart/form-data; boundary={cut}"
