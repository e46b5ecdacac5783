"""One attack on one server: what the polite client, the memory and the attacker saw before, during and after."""

from __future__ import annotations

import math
import multiprocessing
import threading
import time
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from attacks.catalog import ATTACKS
from attacks.place import Place, Seen
from attacks.polite import Asked, Polite
from attacks.server import Served, served
from attacks.stopping import ANSWERS, Stop, stopped

REST = 3.0  # seconds of the polite client alone, before and for the memory at rest
GRACE = 15.0  # seconds for the attacker's process to start, and to end after its time
AFTERWARDS = 12.0  # seconds in which everything must have recovered
STEADY = 3.0  # seconds in which all was well, after which it counts as recovered
UNDER_WAY = 3.0  # seconds, after which an attack is under way
STOP = 45.0  # seconds that a stop may take before the process is killed
LATENCY, MEMORY, RECOVERY, STOPPED = 1.0, 1.5, 10.0, 30.0  # what is promised


@dataclass(frozen=True)
class Trial:
    """What an attack came to."""

    asked: int  # by the polite client while the attack ran
    errors: int  # of them without an answer of status 200
    p50: float  # seconds; infinite where the errors are that many
    p99: float
    longest: float
    memory_at_rest: int
    memory_peak: int
    memory_after: int
    recovered: float  # seconds after the attack, until all is answered within a second and the memory is back
    stopped: (
        float | None
    )  # seconds from SIGTERM in the middle of the attack to the end; None: it was not tried
    status: int  # of that end
    seen: Seen  # by the attacker
    holds: bool  # what must be true of that
    in_flight: dict[str, int] = field(default_factory=dict)  # polite requests at SIGTERM, by their status

    @property
    def held(self) -> bool:
        """Whether everything that is promised was kept."""
        return (
            self.p99 <= LATENCY
            and self.memory_peak < MEMORY * self.memory_at_rest
            and self.recovered <= RECOVERY
            and (self.stopped is None or self.stopped <= STOPPED)
            and self.status == 0
            and set(self.in_flight) <= ANSWERS
            and self.holds
        )

    def record(self) -> dict[str, Any]:
        """For JSON, which knows no infinity."""
        told = asdict(self) | {"held": self.held}
        return {
            name: None if isinstance(value, float) and math.isinf(value) else value
            for name, value in told.items()
        }


def try_one(
    name: str, model: Path, source: Path, seconds: float, share: float = 1.0, *, stop: bool = True
) -> Trial:
    """Start a server, attack it, look what becomes of it; then stop it in the middle of another attack."""
    with served(model, source) as server:
        with Memory(server) as memory, Polite(server.port) as polite:
            time.sleep(REST)
            at_rest = memory.now
            memory.peak = 0
            began = time.monotonic()
            seen = attack(name, Place(server.port, seconds, share))
            ended = time.monotonic()
            peak = memory.peak
            _await_recovery(polite, memory, MEMORY * at_rest, ended)
        asked = [one for one in polite.asked if began <= one.began < ended]
        slow = [one.began + one.seconds for one in polite.asked if one.began >= began and not _good(one)]
        recovered = max(
            max(slow, default=ended) - ended, memory.back_at(MEMORY * at_rest, ended) - ended, 0.0
        )
        times = times_of(asked)
        end = stop_under(name, server, share) if stop else None
        return Trial(
            asked=len(asked),
            errors=sum(one.status != 200 for one in asked),
            p50=share_of(times, 0.5),
            p99=share_of(times, 0.99),
            longest=max((one.seconds for one in asked), default=math.inf),
            memory_at_rest=at_rest,
            memory_peak=peak,
            memory_after=memory.now,
            recovered=recovered,
            stopped=end.seconds if end else None,
            status=end.status if end else 0,
            seen=seen,
            holds=ATTACKS[name].holds(seen),
            in_flight=end.in_flight if end else {},
        )


def _await_recovery(polite: Polite, memory: Memory, most: float, ended: float) -> None:
    """Until the polite client and the memory were well for a while, or the time for that is over."""
    while (now := time.monotonic()) < ended + AFTERWARDS:
        since = max(ended, now - STEADY)
        lately = [one for one in list(polite.asked) if one.began >= since]
        if (
            now >= ended + STEADY
            and len(lately) >= 3
            and all(map(_good, lately))
            and memory.back_at(most, since) == since
        ):
            return
        time.sleep(0.2)


def attack(name: str, place: Place) -> Seen:
    """Until its time is over; it has a process of its own, and is ended where it does not end by itself."""
    process, results = _attacker(name, place)
    results.poll(place.seconds + GRACE)
    seen = results.recv() if results.poll() else {}
    _end(process)
    return seen


def stop_under(name: str, server: Served, share: float) -> Stop:
    """What a stop comes to in the middle of the attack."""
    process, _ = _attacker(name, Place(server.port, UNDER_WAY + STOP, share))
    try:
        return stopped(server, STOP, lambda: time.sleep(UNDER_WAY))
    finally:
        _end(process)


class Memory:
    """What the server takes, looked at five times a second."""

    def __init__(self, server: Served) -> None:
        self._server, self._over = server, threading.Event()
        self._seen: list[tuple[float, int]] = []
        self.now, self.peak = server.memory, 0
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def back_at(self, most: float, since: float) -> float:
        """When it was last above so much."""
        return max((when for when, taken in self._seen if when >= since and taken > most), default=since)

    def _look(self) -> None:
        while not self._over.wait(0.2):
            self.now = self._server.memory
            self.peak = max(self.peak, self.now)
            self._seen.append((time.monotonic(), self.now))


def _attacker(name: str, place: Place) -> tuple[Any, Connection]:
    processes = multiprocessing.get_context("spawn")
    results, inside = processes.Pipe(duplex=False)
    process = processes.Process(target=_play, args=(name, place.port, place.seconds, place.share, inside))
    process.start()
    inside.close()
    return process, results


def _end(process: Any) -> None:
    process.terminate()
    process.join()


def _play(name: str, port: int, seconds: float, share: float, results: Connection) -> None:
    results.send(ATTACKS[name].run(Place(port, seconds, share)))


def _good(one: Asked) -> bool:
    return one.status == 200 and one.seconds <= LATENCY


def times_of(asked: list[Asked]) -> list[float]:
    """Seconds, the shortest first; infinite where there was no answer."""
    return sorted(one.seconds if one.status == 200 else math.inf for one in asked)


def share_of(times: list[float], share: float) -> float:
    """Within how many seconds this share was answered."""
    return times[min(len(times) - 1, int(share * len(times)))] if times else math.inf
