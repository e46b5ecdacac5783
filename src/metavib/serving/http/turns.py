"""Whose images come next: fair turns between clients where more wait than one batch takes."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar, runtime_checkable

Client = tuple[str, int]  # address and port: a connection
NOBODY: Client = ("", 0)
REMEMBERED = 10_000  # clients
SECONDS_AN_IMAGE = 1e-4  # an image that took longer to decode counts as several


@runtime_checkable
class _Job(Protocol):
    client: Client
    abandoned: bool
    number: int  # a later request has a higher one

    @property
    def weight(self) -> float:
        """The images that it is expected to count as."""


@runtime_checkable
class Waiting(Protocol):
    """One image that waits, or several that came as one array."""

    seconds: float  # that it took

    @property
    def job(self) -> _Job: ...
    def __len__(self) -> int: ...


Served = TypeVar("Served", bound=Waiting)


class Turns(Generic[Served]):
    """A queue. Where all fit into a batch, all are taken, in their order.

    Else, and where something of the last batch was put back, `few` are taken at a time. Every other batch begins
    with those that had least since then: the address that had fewest images, of it the connection that will have
    had fewest with its next request. Whoever comes new counts as if it had had what the others have. So one image
    does not wait for thousands of another client, nor for the first requests of many. The batches between begin
    with those that have waited longest, so that nobody waits for ever.
    """

    def __init__(self, most: int, few: int | None = None) -> None:
        self._most, self._few = most, min(most, few or most)
        self._waiting: dict[_Job, deque[Served]] = {}  # requests by their age
        self._images = 0
        self._by_age = True
        self._interrupted = False
        self._had: defaultdict[Client | str, float] = defaultdict(float)
        self._level = (0.0, 0.0)  # what an address, and of it a connection, had before the least's last turn

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def extend(self, pieces: Iterable[Served]) -> None:
        """Add pieces at the end."""
        for piece in pieces:
            if (own := self._waiting.get(piece.job)) is None:
                own = self._waiting[piece.job] = deque()
                self._arrive(piece.job.client)
            own.append(piece)
            self._images += len(piece)

    def take(self) -> list[Served]:
        """The next batch: at least one piece, and as many as it has room for."""
        if self._images <= self._most and not self._interrupted:
            taken = [piece for own in self._waiting.values() for piece in own]
            self._waiting.clear()
            self._images = 0
            self._forget()
            self._count(taken)
            self._by_age = False
            return taken
        self._interrupted = False
        # Nothing is done for those whom nobody waits for: they go through at once.
        gone = [job for job in self._waiting if job.abandoned]
        taken = [piece for job in gone for piece in self._waiting.pop(job)]
        wanted = self._first_of(list(self._waiting))
        self._count(wanted)
        taken += wanted
        self._images -= sum(map(len, taken))
        return taken

    def put_back(self, rest: Sequence[Served], done: Iterable[Served]) -> None:
        """The last batch ended before its `rest`, which waits where it was. What is done counts by its time."""
        for piece in done:
            self._add(piece.job.client, piece.seconds / SECONDS_AN_IMAGE)
        for piece in reversed(rest):
            self._waiting.setdefault(piece.job, deque()).appendleft(piece)
            self._images += len(piece)
            self._add(piece.job.client, -len(piece))
        self._waiting = dict(sorted(self._waiting.items(), key=lambda item: item[0].number))
        self._interrupted = True

    def _first_of(self, jobs: list[_Job]) -> list[Served]:
        """As many pieces of these requests as there is room for, in the order whose turn it is."""
        if not self._by_age:
            jobs = heapq.nsmallest(self._few, jobs, key=self._rank)
            if jobs:
                address, connection = jobs[0].client[0], jobs[0].client
                self._level = (self._had[address], self._had[connection])
        self._by_age = not self._by_age
        taken: list[Served] = []
        images = 0
        for job in jobs:
            own = self._waiting[job]
            while own:
                images += len(own[0])
                if taken and images > self._few:
                    return taken
                taken.append(own.popleft())
            del self._waiting[job]
        return taken

    def _rank(self, job: _Job) -> tuple[float, float]:
        client = job.client
        return self._had.get(client[0], 0.0), self._had.get(client, 0.0) + job.weight

    def _arrive(self, client: Client) -> None:
        if len(self._had) > REMEMBERED:
            self._forget()
        if self._level == (0.0, 0.0):
            return
        address, connection = self._level
        self._had[client[0]] = max(self._had[client[0]], address)
        self._had[client] = max(self._had[client], connection)

    def _forget(self) -> None:
        self._had.clear()
        self._level = (0.0, 0.0)

    def _count(self, taken: list[Served]) -> None:
        if len(self._had) > REMEMBERED:
            self._forget()
        for piece in taken:
            self._add(piece.job.client, len(piece))

    def _add(self, client: Client, images: float) -> None:
        self._had[client[0]] += images
        self._had[client] += images
