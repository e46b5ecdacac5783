"""The end of a server: within its time, whatever is being decoded, and every request gets its answer or a 503."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import uvicorn

ARRIVING_SECONDS = 0.1  # for what has reached this machine when the server is told to stop
REFUSING_SECONDS = 3.0  # for the 503s to be sent
LAST_SECONDS = 5.0  # for the application to end
EXIT_SECONDS = 5.0  # for the process to end, also on a busy machine


async def stop(server: uvicorn.Server, seconds: float) -> None:
    """Wait for answers that are under way; refuse what is not ready in time; end the application."""
    state: Any = server.server_state
    await asyncio.sleep(min(ARRIVING_SECONDS, seconds))
    for connection in list(state.connections):
        connection.shutdown()
    if not await _done(server, max(0.0, seconds - REFUSING_SECONDS - LAST_SECONDS - EXIT_SECONDS)):
        for connection in list(state.connections):
            if connection.cycle is not None and connection.cycle.response_started:
                connection.transport.abort()  # half an answer that is not taken
        await asyncio.sleep(0)
        for task in list(state.tasks):
            task.cancel()  # the guard answers with a 503
        if not await _done(server, REFUSING_SECONDS):
            for connection in list(state.connections):
                connection.transport.abort()
    if not server.force_exit:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_SECONDS):
                await server.lifespan.shutdown()


async def _done(server: uvicorn.Server, seconds: float) -> bool:
    """Whether all was answered within that time."""
    state, loop = server.server_state, asyncio.get_running_loop()
    end = loop.time() + seconds
    while (state.connections or state.tasks) and not server.force_exit:
        if loop.time() > end:
            return False
        await asyncio.sleep(0.05)
    return True
