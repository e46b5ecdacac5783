"""Many clients in one thread, as light as they can be: they share the cores with the server that they ask.

Requests are bytes that lie ready, connections stay open, and of most answers only status and length are looked at;
some are read as a client would read them. `serving_load.py` starts this as a process of its own.
"""

from __future__ import annotations

import io
import json
import os
import select
import socket
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

from load.cores import Cores

ARRAYS = "application/x-npy"
PATIENCE = 120.0  # s without any answer
READ = 97  # of so many answers, one is read as a whole
_ROOM = 1 << 18


@dataclass
class Client:
    """One connection, and where it stands."""

    link: socket.socket
    at: int  # the next request
    request: bytes = b""
    sent: int = 0
    started: float = 0.0
    missing: int = -1  # bytes of the answer that have not come; not known yet
    whole: list[bytes] | None = None
    fine: bool = True


@dataclass
class Seen:
    """What the clients saw."""

    times: list[float] = field(default_factory=list)
    errors: int = 0


def play(
    address: str,
    server: int,
    requests: list[bytes],
    images: int,
    clients: int,
    seconds: float,
) -> dict[str, Any]:
    """All clients at once, each asking again as soon as it has its answer. `server` is its process."""
    host, port = address.removeprefix("http://").split(":")
    poll = select.epoll()
    open_clients: dict[int, Client] = {}
    for number in range(clients):  # first, so that all start at once
        link = socket.create_connection((host, int(port)))
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.setblocking(False)
        open_clients[link.fileno()] = Client(link, number)
        poll.register(link, select.EPOLLIN)
    seen, buffer = Seen(), bytearray(_ROOM)
    cores = Cores(server=server, clients=os.getpid())
    end = cores.started + seconds
    for client in open_clients.values():
        _ask(client, requests, poll)
    while open_clients:
        events = poll.poll(PATIENCE)
        if not events:
            raise SystemExit(f"there was no answer within {PATIENCE:g} s")
        for number, event in events:
            client = open_clients[number]
            if event & select.EPOLLOUT:
                _go_on_sending(client, poll)
            if event & ~select.EPOLLOUT and _answered(client, buffer, images):
                now = time.perf_counter()
                seen.times.append(now - client.started)
                seen.errors += not client.fine
                if now < end:
                    client.at += clients
                    _ask(client, requests, poll)
                else:
                    poll.unregister(number)
                    open_clients.pop(number).link.close()
    spent = cores.until_now()
    cuts = statistics.quantiles(seen.times, n=1000)
    done = images * (len(seen.times) - seen.errors)
    return {
        "images_a_second": done / spent.seconds,
        "requests_a_second": len(seen.times) / spent.seconds,
        "errors": seen.errors,
        "cpu_ms_an_image": 1000 * spent.cpu_seconds["server"] / max(done, 1),
        "clients_cpu_ms_an_image": 1000 * spent.cpu_seconds["clients"] / max(done, 1),
        "cores_of_others": spent.cores_of_others,
        "ms": {
            name: 1000 * cuts[at] for name, at in (("p50", 499), ("p95", 949), ("p99", 989), ("p99.9", 998))
        },
    }


def _ask(client: Client, requests: list[bytes], poll: select.epoll) -> None:
    client.request = requests[client.at % len(requests)]
    client.missing, client.fine, client.sent = -1, True, 0
    client.whole = [] if client.at % READ == 0 else None
    client.started = time.perf_counter()
    client.sent = client.link.send(client.request)
    if client.sent < len(client.request):
        poll.modify(client.link, select.EPOLLIN | select.EPOLLOUT)


def _go_on_sending(client: Client, poll: select.epoll) -> None:
    client.sent += client.link.send(memoryview(client.request)[client.sent :])
    if client.sent == len(client.request):
        poll.modify(client.link, select.EPOLLIN)


def _answered(client: Client, buffer: bytearray, images: int) -> bool:
    """Take in what has come; whether that was the rest of the answer."""
    try:
        count = client.link.recv_into(buffer)
    except ConnectionError:
        count = 0
    if not count:
        raise SystemExit("the server ended a connection: it was sent more than it takes")
    if client.missing < 0:  # the head comes whole: the server writes it at once, before all else
        head = bytes(buffer[: min(count, 2000)]).partition(b"\r\n\r\n")[0]
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        client.missing = len(head) + 4 + length
        client.fine = head.startswith(b"HTTP/1.1 200")
    client.missing -= count
    if client.whole is not None:
        client.whole.append(bytes(buffer[:count]))
    if client.missing:
        return False
    if client.whole is not None:
        client.fine = client.fine and _right(b"".join(client.whole), images)
    return True


def _right(answer: bytes, images: int) -> bool:
    """Whether an answer has a sound row for each image."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if ARRAYS.encode() in head:
        import numpy as np

        table = np.load(io.BytesIO(body), allow_pickle=False)
        return len(table) == images and bool(np.allclose(table["probabilities"].sum(axis=1), 1, atol=1e-4))
    told = json.loads(body)
    sums = [sum(one["probabilities"].values()) for one in told["predictions"]]
    return len(sums) == images and not told["problems"] and all(abs(own - 1) < 1e-4 for own in sums)


# --- requests, ready to be sent -------------------------------------------------------------------------------


def file_requests(images: list[tuple[str, bytes]], count: int) -> list[bytes]:
    """Type and bytes of files: a file each, or several as a form."""
    if count == 1:
        return [post(kind, content) for kind, content in images]
    parts = [
        b'--cut\r\nContent-Disposition: form-data; name="image"; filename="x"\r\nContent-Type: '
        + kind.encode()
        + b"\r\n\r\n"
        + content
        + b"\r\n"
        for kind, content in images
    ]
    bodies = [
        b"".join(parts[at : at + count]) + b"--cut--\r\n" for at in range(0, len(parts) - count + 1, count)
    ]
    return [post("multipart/form-data; boundary=cut", body) for body in bodies]


def array_requests(images: list[tuple[str, bytes]], count: int, *, tables: bool) -> list[bytes]:
    """The same as pixels: so many images of the first one's size and colour in an array."""
    import numpy as np
    from PIL import Image

    opened = [Image.open(io.BytesIO(content)) for _, content in images]
    pixels = [np.asarray(image.convert(opened[0].mode).resize(opened[0].size)) for image in opened]
    bodies = []
    for at in range(0, len(pixels) - count + 1, count):
        file = io.BytesIO()
        np.save(file, np.stack(pixels[at : at + count]))
        bodies.append(file.getvalue())
    return [post(ARRAYS, body, f"Accept: {ARRAYS}\r\n" if tables else "") for body in bodies]


def post(kind: str, body: bytes, header: str = "") -> bytes:
    """One request."""
    head = f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}Content-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
