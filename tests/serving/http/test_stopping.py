"""A stop: every request gets its answer or a 503, and nobody waits for a thread that hangs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from places import PATIENCE

from metavib.serving.http.guards import access_for
from metavib.serving.http.limits import Limits
from metavib.serving.http.listening import listen, server_of
from metavib.serving.http.server import build_app
from metavib.serving.http.service import Service
from metavib.serving.predictor import Predictor

pytestmark = pytest.mark.load

POST = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"


class Hanging(Predictor):
    """Once armed, it decodes an image until it is let."""

    def __init__(self, like: Predictor) -> None:
        vars(self).update(vars(like))
        self.armed, self.entered, self.let = threading.Event(), threading.Event(), threading.Event()

    def decode(self, content: Any, name: Any) -> Any:
        if self.armed.is_set():
            self.entered.set()
            self.let.wait(PATIENCE)
        return super().decode(content, name)


@contextlib.contextmanager
def stoppable(predictor: Hanging, limits: Limits) -> Iterator[tuple[Any, Service, int, threading.Thread]]:
    service = Service({"mean": predictor}, limits)
    listener = listen("127.0.0.1", 0)
    server = server_of(build_app(service, access_for("127.0.0.1", None, [], anyone=False)), limits)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        predictor.armed.set()
        yield server, service, listener.getsockname()[1], thread
    finally:
        server.should_exit = True
        predictor.let.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.fixture
def hanging(predictors: dict[str, Any]) -> Hanging:
    return Hanging(predictors["mean"])


def received(link: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionError):
        while chunk := link.recv(65536):
            found += chunk
    return found


def test_what_a_hanging_decoder_keeps_is_refused_and_the_server_ends(hanging, image, caplog):
    with stoppable(hanging, Limits(stop_seconds=1)) as (server, service, port, thread):
        links = [socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) for _ in range(5)]
        whole = POST + b"Content-Length: %d\r\n\r\n" % len(image()) + image()
        for link, data in zip(links, [whole, whole, whole[:-5], b"GET / HTT", b""], strict=True):
            link.sendall(data)
        assert hanging.entered.wait(PATIENCE)
        while service.budget.taken < 2 * len(image()):
            time.sleep(0.01)
        server.should_exit = True
        answers = [received(link) for link in links]
        thread.join(PATIENCE)
        assert not thread.is_alive()  # although the decoder still hangs
        assert not service.threads_ended
        assert not service.ready
        for link in links:
            link.close()
    for answer in answers[:4]:
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in answer
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"application/json" in head
        assert json.loads(body)["error"] == "the server is stopping"
    assert answers[4] == b""  # it asked for nothing
    assert "Traceback" not in caplog.text


def test_what_is_ready_in_time_is_answered(hanging, image):
    with stoppable(hanging, Limits(stop_seconds=60)) as (server, service, port, thread):
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as link:
            link.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(image()) + image())
            assert hanging.entered.wait(PATIENCE)
            server.should_exit = True
            time.sleep(0.5)
            hanging.let.set()
            assert received(link).startswith(b"HTTP/1.1 200")
        thread.join(PATIENCE)
        assert service.threads_ended


def test_a_client_that_never_reads_does_not_hold_the_server_up(hanging):
    with (
        stoppable(hanging, Limits(stop_seconds=1, send_seconds=600)) as (server, _, port, thread),
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as link,
    ):
        link.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                link.send(b"GET /page.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()
