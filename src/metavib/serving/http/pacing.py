"""Second turns: work on the event loop that others need not wait for is done a little in each of its turns."""

import asyncio
from collections import deque
from collections.abc import Callable

A_TURN = 4  # calls


class Later:
    """Calls that wait for a turn, in their order, a few in each turn of the event loop."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def call(self, loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
        """Do this when its turn has come."""
        if not self._waiting:
            loop.call_soon(self._run, loop)
        self._waiting.append(work)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        due = [self._waiting.popleft() for _ in range(min(A_TURN, len(self._waiting)))]
        if self._waiting:
            loop.call_soon(self._run, loop)
        for work in due:
            work()


class OneInATurn:
    """Lets one of all that wait pass in each turn of the event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> None:
        await self._lock.acquire()

    async def __aexit__(self, *error: object) -> None:
        try:
            await asyncio.sleep(0)
        finally:
            self._lock.release()
