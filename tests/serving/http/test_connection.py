"""One connection: its requests one after the other, its end, and what it may not do."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from places import PATIENCE

from metavib.serving.http.limits import Limits

pytestmark = pytest.mark.load

HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
HEALTH = HEAD + b"\r\n"
LAST = HEAD + b"Connection: close\r\n\r\n"
PAGE = b"GET /page.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"


def with_body(content: bytes, *headers: bytes) -> bytes:
    return POST + b"".join(headers) + b"Content-Length: %d\r\n\r\n" % len(content) + content


def chunked(content: bytes, size: int, *headers: bytes) -> bytes:
    parts = [content[at : at + size] for at in range(0, len(content), size)]
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return POST + b"".join(headers) + b"Transfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"


def link_to(server: Any) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)


def rest_of(link: socket.socket) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionError):
        while chunk := link.recv(65536):
            received += chunk
    return received


def statuses(received: bytes) -> list[int]:
    return [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]]


def last_body(received: bytes) -> dict[str, str]:
    return json.loads(received.rpartition(b"\r\n\r\n")[2])


def eventually(condition: Callable[[], Any], seconds: float = PATIENCE) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


# --- one request after the other ----------------------------------------------------------------------------


def test_a_client_gets_many_answers_over_one_connection(running):
    received = running.raw(HEALTH + HEALTH + LAST)
    assert statuses(received) == [200, 200, 200]
    assert received.count(b'{"status":"ok"}') == 3


def test_a_thousand_requests_at_once_are_answered_in_their_order(running, image):
    good, bad = with_body(image()), with_body(b"no image")
    with link_to(running) as link:
        link.sendall((HEALTH + good + bad) * 100 + HEALTH * 699 + LAST)
        received = rest_of(link)
    assert statuses(received) == [200, 200, 415] * 100 + [200] * 700


def test_chunks_may_be_small_where_they_are_few(running, image):
    for size, content in ((1, image(4)), (64, image(120))):
        with link_to(running) as link:
            link.sendall(chunked(content, size, b"Connection: close\r\n"))
            assert statuses(rest_of(link)) == [200]


def test_a_body_in_the_smallest_chunks_is_refused_long_before_its_end(running):
    with link_to(running) as link:
        with contextlib.suppress(ConnectionError):
            link.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 600)
        received = rest_of(link)
    assert statuses(received) == [413]
    assert "larger chunks" in last_body(received)["what_to_do"]
    assert eventually(lambda: running.service.budget.taken == 0)


def test_requests_are_cut_anywhere(running, image):
    whole = HEALTH + with_body(image()) + chunked(image(), 100) + HEALTH + b"\r\n" + LAST
    for size in (1, 7, 64, 1000):
        with link_to(running) as link:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for at in range(0, len(whole), size):
                link.send(whole[at : at + size])
                if size < 1000:
                    time.sleep(0)
            assert statuses(rest_of(link)) == [200] * 5


def test_bodies_in_small_chunks_are_read_and_what_follows_is_answered(running, image):
    for size in (65, 100, 2000):
        received = running.raw(chunked(image(64), size) + HEALTH * 30 + LAST, timeout=PATIENCE)
        assert statuses(received) == [200] * 32


def test_a_whole_request_is_answered_whatever_follows_it(gated_server, image):
    server, gate = gated_server(Limits(header_seconds=0.05))
    for rest in (b"GET /health HTTP/1.1\r\nHos", b"G"):
        gate.open.clear()
        gate.entered.clear()
        with link_to(server) as link:
            link.sendall(with_body(image()) + rest)
            assert gate.entered.wait(PATIENCE)
            time.sleep(0.2)  # the head is late now
            gate.open.set()
            received = rest_of(link)
        assert statuses(received) == [200, 408]
        assert set(last_body(received)) == {"error", "what_to_do"}


def test_what_all_clients_send_early_is_limited(start):
    server = start(Limits(early_bytes=300))
    with link_to(server) as link:
        link.sendall(HEALTH * 1000)
        received = statuses(rest_of(link))
    assert received  # the first one has its answer
    assert len(received) < 1000
    assert set(received) == {200}
    assert statuses(server.raw(HEALTH * 3 + LAST)) == [200] * 4  # all of it was given back


# --- a client that has ended its side -----------------------------------------------------------------------


def half_closed(server: Any, data: bytes) -> bytes:
    with link_to(server) as link:
        link.sendall(data)
        link.shutdown(socket.SHUT_WR)
        return rest_of(link)


def test_a_half_closed_client_gets_its_answers(running, image):
    assert statuses(half_closed(running, HEALTH)) == [200]
    assert statuses(half_closed(running, with_body(image()))) == [200]
    assert statuses(half_closed(running, chunked(image(), 10))) == [200]
    received = half_closed(running, HEALTH + with_body(image()) * 3 + HEALTH)
    assert statuses(received) == [200] * 5
    assert received.startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_half_closed_client_gets_an_answer_that_takes_long(gated_server, image):
    server, gate = gated_server()
    with link_to(server) as link:
        link.sendall(with_body(image()))
        link.shutdown(socket.SHUT_WR)
        assert gate.entered.wait(PATIENCE)
        time.sleep(0.5)  # it is looked at whether the client is there
        gate.open.set()
        received = rest_of(link)
    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    assert statuses(received) == [200]


@pytest.mark.parametrize("cut", [20, -3], ids=["head", "body"])
def test_a_request_that_was_cut_off_is_refused(running, image, cut):
    received = half_closed(running, with_body(image())[:cut])
    assert statuses(received) == [400]
    assert "cut off" in last_body(received)["error"]
    received = half_closed(running, HEALTH + with_body(image())[:cut])
    assert statuses(received) == [200, 400]


# --- clients that do not read -------------------------------------------------------------------------------


def gone(link: socket.socket) -> bool:
    """Whether the server has given the connection up, as one notices who sends something."""
    try:
        link.send(b"\r\n", socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return False


def test_a_client_that_never_reads_is_given_up(start):
    server = start(Limits(send_seconds=0.3))
    with link_to(server) as link:
        link.setblocking(False)
        with contextlib.suppress(OSError):
            while sent := link.send(PAGE * 1000):
                assert sent
        assert eventually(lambda: gone(link))
    assert server.ask("GET", "/health").status == 200


def test_a_client_that_reads_slowly_gets_everything(start):
    server = start(Limits(send_seconds=30))
    size = len(server.ask("GET", "/page.js").body)
    with link_to(server) as link:
        link.sendall(PAGE * 300 + LAST)
        time.sleep(0.3)
        assert len(rest_of(link)) > 300 * size


def test_an_answer_counts_as_held_until_it_is_taken(start, image, monkeypatch):
    monkeypatch.setattr("metavib.serving.http.service.LARGE_ANSWER", 10)
    server = start()
    for _ in range(3):
        assert server.send(image()).status == 200
    assert eventually(lambda: server.service.budget.taken == 0)


# --- too many ------------------------------------------------------------------------------------------------


def test_idle_connections_make_way(start):
    server = start(Limits(connections=5))
    links = [link_to(server) for _ in range(4)]
    try:
        links[0].sendall(b"GET / HT")
        assert server.ask("GET", "/health").status == 200
        for _ in range(20):
            links.append(link_to(server))
        assert server.ask("GET", "/health").status == 200
        received = rest_of(links[1])  # it said nothing for longest
        assert statuses(received) == [503]
        assert b"retry-after: 1" in received
        assert "connections" in last_body(received)["error"]
    finally:
        for link in links:
            link.close()


def test_clients_that_do_not_read_make_way_for_others(start):
    server = start(Limits(connections=4, send_seconds=600))
    links = [link_to(server) for _ in range(4)]
    try:
        for link in links:
            link.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    link.send(PAGE * 100)
        # As soon as it has written what they do not read.
        assert eventually(lambda: server.ask("GET", "/health").status == 200)
        for _ in range(8):
            assert server.ask("GET", "/health").status == 200
        assert any(gone(link) for link in links)
    finally:
        for link in links:
            link.close()


def test_where_all_are_being_answered_a_new_one_is_refused(gated_server, image):
    server, gate = gated_server(Limits(connections=3))
    links = [link_to(server) for _ in range(3)]
    try:
        for link in links:
            link.sendall(with_body(image(), b"Connection: close\r\n"))
        assert eventually(lambda: server.service.batcher.waiting == 3)
        received = server.raw(b"")
        assert statuses(received) == [503]
        assert b"retry-after: 1" in received
        gate.open.set()
        assert [statuses(rest_of(link)) for link in links] == [[200]] * 3
    finally:
        for link in links:
            link.close()
    assert server.ask("GET", "/health").status == 200


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (HEAD + b"X: y\r\n" * 101 + b"\r\n", 431),
        (HEAD + b"X: y\r\n" * 3000, 431),
        (HEAD + b"X: " + b"y" * 40_000, 431),
        (b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\nhello", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHos", 408),
        (b"", 408),
    ],
    ids=["no HTTP", "headers", "endless headers", "long header", "tunnel", "chunks", "late", "silent"],
)
def test_every_error_of_the_connection_is_told_in_the_documented_form(start, data, status):
    server = start(Limits(header_seconds=0.5))
    received = server.raw(data, timeout=PATIENCE)
    assert statuses(received)[0] == status
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head
    assert b"nosniff" in head
    assert set(json.loads(body[: int(head.partition(b"content-length: ")[2].split()[0])])) == {
        "error",
        "what_to_do",
    }
