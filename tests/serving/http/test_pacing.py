"""A little in each turn of the event loop, in order, and nothing is lost."""

from __future__ import annotations

import asyncio

from metavib.serving.http.pacing import A_TURN, Later, OneInATurn


def test_a_few_calls_in_each_turn_in_their_order():
    async def inside() -> list[list[int]]:
        later, done, seen = Later(), [], []
        loop = asyncio.get_running_loop()
        for number in range(10):
            later.call(loop, lambda number=number: done.append(number))
        while len(done) < 10:
            await asyncio.sleep(0)
            seen.append(list(done))
        later.call(loop, lambda: done.append(10))
        await asyncio.sleep(0)
        return [*seen, list(done)]

    seen = asyncio.run(inside())
    assert seen == [list(range(count)) for count in (A_TURN, 2 * A_TURN, 10, 11)]


def test_who_asks_again_waits_until_the_others_had_theirs():
    async def inside() -> list[str]:
        later, done = Later(), []
        loop = asyncio.get_running_loop()

        def greedy() -> None:
            done.append("greedy")
            if len(done) < 20:
                later.call(loop, greedy)

        later.call(loop, greedy)
        for _ in range(6):
            later.call(loop, lambda: done.append("other"))
        for _ in range(30):
            await asyncio.sleep(0)
        return done

    assert "other" not in asyncio.run(inside())[8:]


def test_one_passes_in_each_turn():
    async def inside() -> list[int]:
        turn, passed, seen = OneInATurn(), [], []

        async def work(number: int) -> None:
            async with turn:
                passed.append(number)

        tasks = [asyncio.create_task(work(number)) for number in range(5)]
        for _ in range(40):
            before = len(passed)
            await asyncio.sleep(0)
            seen.append(len(passed) - before)
        await asyncio.gather(*tasks)
        assert passed == list(range(5))
        return seen

    assert max(asyncio.run(inside())) == 1
