"""How much is computed and held at once."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from places import PATIENCE

from metavib.data.transforms import Preprocessing
from metavib.serving.http import service as service_module
from metavib.serving.http.limits import SMALL_BYTES, Budget, Limits
from metavib.serving.http.pixel_arrays import TYPE
from metavib.serving.http.refusals import Refusal
from metavib.serving.http.service import Service, _when_received, batch_of
from metavib.serving.http.uploads import WHEN_GONE


@pytest.mark.parametrize(
    ("size", "channels", "at_once", "expected"),
    [(28, 1, 1, 256), (28, 1, 4, 256), (32, 3, 1, 65), (227, 3, 1, 64), (227, 3, 2, 16), (227, 3, 4, 16)],
)
def test_batches_together_are_as_large_as_one_unless_images_are_small(size, channels, at_once, expected):
    preprocessing = Preprocessing(size, channels, (0.0,) * channels, (1.0,) * channels)
    assert batch_of(preprocessing.bytes, at_once) == expected


def array(*shape: int) -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros(shape, dtype=np.uint8))
    return file.getvalue()


def test_the_pixels_that_images_become_count_as_held(start):
    server = start(Limits(waiting_bytes=9_000))
    assert server.send(array(10, 28, 28), TYPE).status == 200  # they are pixels already
    assert server.send(array(10, 5, 5), TYPE).status == 200
    reply = server.send(array(12, 5, 5), TYPE)  # 9,408 bytes, as the model takes them
    assert reply.status == 503
    assert "bytes" in reply.json["error"]
    assert server.service.budget.taken == 0


def test_images_of_arrays_are_counted_by_what_became_of_them(start):
    server = start()
    assert server.send(array(7, 28, 28), TYPE).status == 200
    assert server.send(array(2, 28, 28, 2), TYPE).status == 422
    counted = {
        line.split('"')[1]: float(line.split()[-1])
        for line in server.ask("GET", "/metrics").body.decode().splitlines()
        if line.startswith("metavib_images_total")
    }
    assert counted["sure"] + counted["unsure"] == 7
    assert counted["refused"] == 2


def test_an_answer_that_takes_too_long_is_given_up(gated_server, image):
    server, gate = gated_server(Limits(answer_seconds=0.05))
    reply = server.send(image())
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    assert "0.05 s" in reply.json["error"]
    assert server.service.budget.taken == 0
    assert 'outcome="abandoned"} 1.0' in server.ask("GET", "/metrics").body.decode()
    gate.open.set()


def test_where_nobody_says_that_a_client_has_gone_it_is_received():
    async def calls(*, forget: bool) -> int:
        ended, called = asyncio.Event(), []

        async def receive() -> dict[str, str]:
            await ended.wait()
            return {"type": "http.disconnect"}

        not_needed = _when_received(receive, lambda: called.append(1))
        await asyncio.sleep(0)
        assert not called
        if forget:
            not_needed()
        ended.set()
        for _ in range(5):
            await asyncio.sleep(0)
        return len(called)

    assert asyncio.run(calls(forget=False)) == 1
    assert asyncio.run(calls(forget=True)) == 0


def test_ready_means_that_an_image_is_answered(gated_server, image, monkeypatch):
    monkeypatch.setattr("metavib.serving.http.service.READY_SECONDS", 0.2)
    monkeypatch.setattr("metavib.serving.http.service.READY_FOR", 0.0)
    server, gate = gated_server()
    for _ in range(2):
        reply = server.ask("GET", "/ready")  # the model has begun with an image, and does not end
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert "not answered" in reply.json["error"]
        assert server.ask("GET", "/health").status == 200
    gate.open.set()
    end = time.monotonic() + PATIENCE
    while server.ask("GET", "/ready").status != 200:
        assert time.monotonic() < end
    assert server.service.budget.taken == 0


def test_not_ready_where_images_would_be_refused(start, image, monkeypatch):
    monkeypatch.setattr("metavib.serving.http.service.READY_FOR", 0.0)
    server = start()
    for held, most in ((server.service.budget, "taken"), (server.service.batcher, "waiting")):
        setattr(held, most, 10**9)
        assert server.send(image()).status == 503
        reply = server.ask("GET", "/ready")
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        setattr(held, most, 0)
        assert server.ask("GET", "/ready").status == 200


def test_who_asks_at_a_time_whether_it_is_ready_costs_one_image(gated_server):
    server, gate = gated_server()
    gate.open.set()
    threads = [threading.Thread(target=server.ask, args=("GET", "/ready")) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(gate.sizes) <= 8


def test_small_requests_have_room_where_large_ones_have_none():
    budget = Budget(1000_000, for_small=300_000)
    with budget.account() as large, budget.account() as small:
        large.take(700_000)
        with pytest.raises(Refusal) as refusal:
            large.take(1)
        assert refusal.value.status == 503
        small.take(SMALL_BYTES)
        with pytest.raises(Refusal):
            small.take(1)
    assert budget.taken == 0


def test_one_image_has_room_where_many_have_none(gated_server, image):
    server, gate = gated_server(Limits(waiting_images=6, connections=8))
    refused = []
    threads = []
    for count in (4, 2):
        asking = lambda count=count: refused.append(server.send(array(count, 28, 28), TYPE).status)  # noqa: E731
        threads.append(threading.Thread(target=asking))
        threads[-1].start()
    end = time.monotonic() + PATIENCE
    while server.service.batcher.waiting < 6:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert server.send(array(2, 28, 28), TYPE).status == 503
    threads.append(threading.Thread(target=lambda: refused.append(server.send(image()).status)))
    threads[-1].start()
    while server.service.batcher.waiting < 7:
        assert time.monotonic() < end
        time.sleep(0.01)
    gate.open.set()
    for thread in threads:
        thread.join()
    assert refused == [200, 200, 200]


def test_an_answer_is_held_until_it_is_sent(predictors, image, monkeypatch):
    monkeypatch.setattr("metavib.serving.http.service.LARGE_ANSWER", 10)
    held: list[int] = []
    asked: list[bool] = []

    async def inside() -> tuple[int, int]:
        service = Service(predictors, Limits())
        sent: list[bytes] = []

        async def receive() -> dict[str, object]:
            if asked:
                await asyncio.Event().wait()
            asked.append(True)
            return {"type": "http.request", "body": image(), "more_body": False}

        async def send(message: dict[str, object]) -> None:
            held.append(service.budget.taken)
            sent.append(message.get("body", b""))

        scope = {"query_string": b"", "headers": [(b"content-type", b"image/png")], "client": ("a", 1)}
        async with service.running():
            await service.respond(scope, receive, send)
        return len(b"".join(sent)), service.budget.taken

    size, left = asyncio.run(inside())
    assert held == [size] * 3
    assert left == 0


@pytest.mark.parametrize(
    ("kind", "accept", "gone", "status"),
    [
        (b"image/png", b"", False, 200),
        (b"image/bmp", b"", False, 415),
        (b"image/bmp", TYPE.encode(), False, 415),
        (TYPE.encode(), b"", False, 200),
        (b"image/png", b"", True, 499),
    ],
)
def test_an_answered_request_holds_no_image_whoever_refers_to_it(
    predictors, image, monkeypatch, kind, accept, gone, status
):
    body = {b"image/bmp": b"no image", TYPE.encode(): array(2, 28, 28)}.get(kind, image(64))
    monkeypatch.setattr("metavib.serving.http.holding.BLOCK", 100)
    read, when_sent, said = [], [], []

    async def read_uploads(*arguments):
        found = await honest(*arguments)
        read.extend(found)
        assert all(one.pixels is not None or one.content == body for one in found)
        return found

    honest = service_module.read_uploads
    monkeypatch.setattr(service_module, "read_uploads", read_uploads)

    async def inside() -> int:
        service = Service(predictors, Limits())

        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": body, "more_body": False}

        def when_gone(call: Callable[[], None]) -> Callable[[], object]:
            if gone:
                call()
            return lambda: None

        async def send(message: dict[str, object]) -> None:
            said.append(message.get("status"))
            when_sent.extend(one.content or one.pixels is not None for one in read)

        headers = [(b"content-type", kind), (b"accept", accept)]
        scope = {"query_string": b"", "headers": headers, "client": ("a", 1), WHEN_GONE: when_gone}
        async with service.running():
            try:
                await service.respond(scope, receive, send)
            except Refusal as refusal:
                return int(refusal.status)
        return said[0]

    assert asyncio.run(inside()) == status
    assert read
    assert not any(one.content or one.pixels is not None for one in read)
    assert not any(when_sent)


def test_memory_that_was_given_back_leaves_the_process(predictors, monkeypatch):
    for name in ("TIDY_SECONDS", "TIDY_PAUSE"):
        monkeypatch.setattr(f"metavib.serving.http.service.{name}", 0.001)
    given: list[int] = []
    size, looks, seen_last = [100], [0], [0]

    def taken() -> int:
        looks[0] += 1
        seen_last[0] = size[0]  # it may be another one by the time that a thread gives back
        return seen_last[0]

    monkeypatch.setattr("metavib.core.memory.taken", taken)
    monkeypatch.setattr("metavib.core.memory.give_back", lambda: given.append(seen_last[0]))

    async def inside() -> None:
        service = Service(predictors, Limits())
        task = asyncio.create_task(service._tidy())
        while not looks[0]:
            await asyncio.sleep(0.001)
        for size[0] in (110, 111, 120, 109):  # 10 % more than 100 is too much
            seen = looks[0]
            while looks[0] < seen + 5:
                await asyncio.sleep(0.001)
        service.budget.taken, size[0] = 200_000, 500  # it is in use
        for _ in range(20):
            await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(inside())
    assert set(given) == {111, 120}
