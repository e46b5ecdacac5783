"""What is written to a connection goes out together, and nothing is lost at its end."""

from __future__ import annotations

import asyncio
from typing import Any

from metavib.serving.http.transport import Gathered


class Transport(asyncio.Transport):
    """Remembers what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.closed = self.aborted = False
        self.unsent = 0

    def writelines(self, parts: Any) -> None:
        assert not self.closed
        self.sent.append(b"".join(parts))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def write(self, data: Any) -> None:
        self.writelines([data])

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.aborted = True


def after(*writes: bytes, then: Any = lambda gathered: None) -> Transport:
    async def inside() -> Transport:
        transport = Transport()
        gathered = Gathered(transport, asyncio.get_running_loop(), 0.0)
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
        gathered = Gathered(transport, asyncio.get_running_loop(), 1.0)
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


def test_an_end_that_nobody_reads_comes_all_the_same():
    async def inside(unsent: int) -> bool:
        transport = Transport()
        transport.unsent = unsent
        Gathered(transport, asyncio.get_running_loop(), 0.0).close()
        assert transport.closed
        assert not transport.aborted
        await asyncio.sleep(0.001)
        return transport.aborted

    assert asyncio.run(inside(1))
    assert not asyncio.run(inside(0))


def test_what_was_begun_is_not_sent_twice():
    async def inside() -> list[bytes]:
        transport = Transport()
        gathered = Gathered(transport, asyncio.get_running_loop(), 0.0)
        gathered.begin()
        gathered.begin()
        for answer in (b"HTTP/1.1 200 OK", b"HTTP/1.1 404 Not Found"):
            gathered.write(answer)
            await asyncio.sleep(0)
        return transport.sent

    assert asyncio.run(inside()) == [b"HTTP/1.1 ", b"200 OK", b"HTTP/1.1 404 Not Found"]
