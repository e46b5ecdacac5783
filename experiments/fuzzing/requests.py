"""Requests to a server of its own on loopback: images, forms, arrays and heads, broken; answers are judged."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import json
import logging
import random
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from fuzzing.image_parts import regrouped
from fuzzing.judge import Judge, until
from fuzzing.mutation import HOSTILE, mutated
from fuzzing.place import FORMATS, Place

KIND = "requests"
PATIENCE = 300.0  # seconds: an answer that takes longer does not come, on a machine with other work too
HEAD_SECONDS = 2.0  # for the server to give up a head that does not end
STATUSES = {200, 400, 403, 404, 405, 408, 413, 415, 422, 431, 503}  # those that docs/serving.md lists
PATHS = ("/predict", "/predict?top=1", "/predict?mode=mean", "/predict?samples=true", "/model", "/ready", "/")


def requests(judge: Judge, place: Place, drawn: random.Random, count: int, deadline: float) -> None:
    """Ask a server until the time is over."""
    with served(place) as (port, logged):
        clients = Client(port), RawClient(port)
        for _ in until(deadline, count):
            client = clients[drawn.random() < 0.3]
            data = client.drawn(place, drawn)
            ending, wrong = client.ask(data)
            wrong += [f"the server logged an error: {text}" for text in logged]
            logged.clear()
            judge.verdicts.note(KIND, ending, wrong, [type(client).__name__, repr(data)[:2000]], "")
        clients[0].close()


class Client:
    """Whole requests with broken contents, over a kept connection."""

    def __init__(self, port: int) -> None:
        self._link = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)

    def drawn(self, place: Place, random: random.Random) -> tuple[str, bytes, dict[str, str]]:
        """An address, a body and its headers."""
        body, kind = _body(place, random)
        headers = {"Content-Type": kind}
        if random.random() < 0.1:
            headers["Accept"] = random.choice(("application/x-npy", "text/html", "*/*;q=x"))
        return random.choice((PATHS[0], *PATHS[:4])), body, headers

    def ask(self, data: tuple[str, bytes, dict[str, str]]) -> tuple[str, list[str]]:
        """The status, and what is wrong with the answer."""
        path, body, headers = data
        for again in (False, True):
            try:
                self._link.request("POST", path, body, headers)
                answer = self._link.getresponse()
                content, kind = answer.read(), answer.getheader("content-type", "")
                return str(answer.status), wrong_with(answer.status, kind, content)
            except TimeoutError:
                self._link.close()
                return "no end", [f"there was no answer in {PATIENCE:g} s"]
            except (OSError, http.client.HTTPException) as error:
                self._link.close()  # it may end between two requests: who asks again over a new one is answered
                if again:
                    return "no answer", [f"the connection ended without an answer: {error!r}"]
        raise AssertionError

    def close(self) -> None:
        """No more requests."""
        self._link.close()


class RawClient:
    """Bytes that are hardly HTTP; the client ends its own side, and must be told something."""

    def __init__(self, port: int) -> None:
        self._port = port

    def drawn(self, place: Place, random: random.Random) -> bytes:
        """A head and a body, broken together, or one of them."""
        body, kind = _body(place, random)
        method = random.choice(("POST", "POST", "GET", "PUT", "HEAD", "OPTIONS", "\0", "post"))
        lines = [f"{method} {random.choice(PATHS)} HTTP/1.{random.choice('0119')}", "Host: localhost"]
        lines += [f"Content-Type: {kind}"]
        if random.random() < 0.4:
            lines.append("Transfer-Encoding: chunked")
            body = _chunked(body[:20_000], random)
        else:
            lines.append(f"Content-Length: {random.choice((len(body), len(body), 0, -1, 10**20, 'x'))}")
        if random.random() < 0.3:
            hostile = random.choice(HOSTILE)
            lines.append(random.choice(("X: {}", "{}: x", "Host: {}", "Expect: {}", "{}")).format(hostile))
        head = "\r\n".join(lines).encode("utf-8", "replace") + b"\r\n\r\n"
        if random.random() < 0.6:
            head = mutated(head, random)
        return head + body

    def ask(self, data: bytes) -> tuple[str, list[str]]:
        """The status of the first answer, and what is wrong with it."""
        received = b""
        with (
            contextlib.suppress(ConnectionError),
            socket.create_connection(("127.0.0.1", self._port)) as link,
        ):
            link.settimeout(PATIENCE)
            try:
                with contextlib.suppress(OSError):  # it is refused before all has been sent
                    link.sendall(data)
                    link.shutdown(socket.SHUT_WR)
                while chunk := link.recv(1 << 16):
                    received += chunk
            except TimeoutError:
                return "no end", [f"the connection was not ended in {PATIENCE:g} s"]
        if not received:  # what is not even the first line of a request
            return "ended", []
        head, _, content = received.partition(b"\r\n\r\n")
        status = head[9:12].decode("latin-1")
        if not head.startswith(b"HTTP/1.1 ") or not status.isdigit():
            return "no HTTP", [f"the answer is {head[:200]!r}"]
        kind = b"json" if b"application/json" in head else b""
        whole = b"transfer-encoding" not in head.lower() and content.count(b"HTTP/1.1 ") == 0
        return status, wrong_with(int(status), kind.decode(), content) if whole and content else []


def wrong_with(status: int, kind: str, content: bytes) -> list[str]:
    """An answer has a documented status, and JSON whose numbers are finite; an error says what to do."""
    wrong = [] if status in STATUSES else [f"the status is {status}: {content[:500]!r}"]
    if status == 200 and "json" not in kind:
        return wrong
    try:
        value = json.loads(content, parse_constant=lambda name: wrong.append(f"{name} is in the answer"))
    except ValueError:
        return [*wrong, f"the answer of status {status} is no JSON: {content[:200]!r}"]
    if status != 200 and set(value) != {"error", "what_to_do"}:
        wrong.append(f"the answer of status {status} is not as documented: {content[:200]!r}")
    return wrong


def _body(place: Place, random: random.Random) -> tuple[bytes, str]:
    way = random.randrange(8)
    if way < 4:
        return _image(place, random), random.choice(("image/png", "image/jpeg", "application/octet-stream"))
    if way < 6:
        parts = [
            b'--cut\r\nContent-Disposition: form-data; name="image"; filename="%s"\r\nContent-Type: image/png'
            b"\r\n\r\n%s\r\n"
            % (random.choice(HOSTILE).encode("utf-8", "replace")[:300], _image(place, random))
            for _ in range(random.choice((1, 2, 3)))
        ]
        content = b"".join(parts) + b"--cut--\r\n"
        kind = random.choice(
            ("multipart/form-data; boundary=cut",) * 3 + ("multipart/form-data", "multipart/x")
        )
        return mutated(content, random) if random.random() < 0.7 else content, kind
    if way == 6:
        file = io.BytesIO()
        shape = random.choice(
            ((2, 20, 20), (1, 20, 20, 3), (1, 3, 20, 20), (0, 2, 2), (1, 1, 1), (5,), (65, 2, 2))
        )
        np.save(file, np.zeros(shape, random.choice((np.uint8, np.uint8, np.float32, np.int64, np.bool_))))
        return mutated(file.getvalue(), random), "application/x-npy"
    kinds = (
        "image/png",
        "application/x-npy",
        "text/plain",
        "image/svg+xml",
        "multipart/form-data; boundary=cut",
    )
    return random.randbytes(random.choice((0, 1, 7, 100, 3000))), random.choice(kinds)


def _image(place: Place, random: random.Random) -> bytes:
    good = (place.root / "pictures" / f"good.{random.choice(list(FORMATS))}").read_bytes()
    return random.choice((mutated, mutated, regrouped))(good, random) if random.random() < 0.9 else good


def _chunked(body: bytes, random: random.Random) -> bytes:
    """In chunks of any size, broken now and then."""
    parts, at = [], 0
    while at < len(body):
        size = random.choice((1, 2, 50, 1000, 20_000))
        part = body[at : at + size]
        parts.append(b"%x%s\r\n%s\r\n" % (len(part), random.choice((b"", b"", b";a=b")), part))
        at += size
    content = b"".join(parts) + b"0\r\n\r\n"
    return mutated(content, random) if random.random() < 0.4 else content


@contextlib.contextmanager
def served(place: Place) -> Iterator[tuple[int, list[str]]]:
    """The finished run behind HTTP in a thread of this process: its port, and the errors that it logs."""
    from metavib.serving.http.guards import access_for
    from metavib.serving.http.limits import Limits
    from metavib.serving.http.listening import listen, server_of
    from metavib.serving.http.server import build_app
    from metavib.serving.http.service import Service
    from metavib.serving.predictor import MODES, load

    limits = Limits(header_seconds=HEAD_SECONDS, body_seconds=HEAD_SECONDS)
    predictors = {mode: load(place.finished, device="cpu", mode=mode) for mode in MODES}
    listener = listen("127.0.0.1", 0)
    service = Service(predictors, limits)
    server = server_of(build_app(service, access_for("127.0.0.1", None, [], anyone=False)), limits)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
    with errors_logged() as logged:
        thread.start()
        end = time.monotonic() + PATIENCE
        while not server.started and time.monotonic() < end:
            time.sleep(0.01)
        try:
            yield listener.getsockname()[1], logged
        finally:
            server.should_exit = True
            thread.join(PATIENCE)


@contextlib.contextmanager
def errors_logged() -> Iterator[list[str]]:
    """What is logged as an error meanwhile, with its traceback; a server shows it to its owner."""
    found: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: Any) -> None:
            found.append(logging.Formatter().format(record)[-1500:])

    keep = Keep(logging.ERROR)
    logging.getLogger().addHandler(keep)
    try:
        yield found
    finally:
        logging.getLogger().removeHandler(keep)
