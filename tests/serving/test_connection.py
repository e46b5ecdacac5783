"""What is written to a connection goes out together, and nothing is lost at its end."""

from __future__ import annotations

import asyncio
from typing import Any

from metavib.serving.connection import Gathered


class Transport(asyncio.Transport):
    """Remembers what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.closed = False

    def writelines(self, parts: Any) -> None:
        assert not self.closed
        self.sent.append(b"".join(parts))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


def after(*writes: bytes, then: Any = lambda gathered: None) -> Transport:
    async def inside() -> Transport:
        transport = Transport()
        gathered = Gathered(transport, asyncio.get_running_loop())
        for data in writes:
            gathered.write(data)
        assert transport.sent == []
        then(gathered)
        await asyncio.sleep(0)
        return transport

    return asyncio.run(inside())


def test_a_head_goes_with_its_body():
    assert after(b"head", b"body").sent == [b"headbody"]


def test_what_is_written_later_goes_later():
    async def inside() -> list[bytes]:
        transport = Transport()
        gathered = Gathered(transport, asyncio.get_running_loop())
        for data in (b"one", b"two"):
            gathered.write(data)
            await asyncio.sleep(0)
        return transport.sent

    assert asyncio.run(inside()) == [b"one", b"two"]


def test_closing_sends_what_was_written():
    transport = after(b"head", b"body", then=lambda gathered: gathered.close())
    assert transport.sent == [b"headbody"]
    assert transport.closed


def test_a_connection_that_was_lost_gets_nothing_more():
    def lose(gathered: Any) -> None:
        gathered._transport.closed = True

    assert after(b"head", then=lose).sent == []
    assert after(b"head", then=lambda gathered: gathered.is_closing()).sent == [
        b"head"
    ]  # as the transport says


def test_a_client_gets_many_answers_over_one_connection(running):
    import socket

    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    with socket.create_connection(("127.0.0.1", running.port), timeout=20) as link:
        link.sendall(head + b"\r\n" + head + b"\r\n" + head + b"Connection: close\r\n\r\n")  # without waiting
        received = b""
        while chunk := link.recv(65536):
            received += chunk
    assert received.count(b"HTTP/1.1 200") == received.count(b'{"status":"ok"}') == 3
