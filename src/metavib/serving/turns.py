"""Whose images come next: fair turns between clients where more wait than one batch takes."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar, runtime_checkable

Client = tuple[str, int]  # address and port: a connection
NOBODY: Client = ("", 0)
REMEMBERED = 10_000  # clients


@runtime_checkable
class _Job(Protocol):
    client: Client
    abandoned: bool

    @property
    def images(self) -> int: ...


@runtime_checkable
class Waiting(Protocol):
    """One image that waits, or several that came as one array."""

    @property
    def job(self) -> _Job: ...
    def __len__(self) -> int: ...


Piece = TypeVar("Piece", bound=Waiting)


class Turns(Generic[Piece]):
    """A queue. Where all fit into a batch, all are taken, in their order.

    Else every other batch begins with those that had least since there was more than a batch: the address that had
    fewest images, of it the connection that had fewest, of it the request that asks for fewest. So one image does
    not wait for thousands of another client. The batches between begin with those that have waited longest, so
    that nobody waits for ever.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: deque[Piece] = deque()
        self._images = 0
        self._by_age = True
        self._had: defaultdict[Client | str, int] = defaultdict(int)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def extend(self, pieces: Iterable[Piece]) -> None:
        """These wait too."""
        for piece in pieces:
            self._waiting.append(piece)
            self._images += len(piece)

    def take(self) -> list[Piece]:
        """The next batch: at least one piece, and as many as it has room for."""
        if self._images <= self._most:
            taken = list(self._waiting)
            self._waiting.clear()
            self._images = 0
            self._had.clear()
            self._by_age = True
            return taken
        # Nothing is done for those whom nobody waits for: they go through at once.
        gone = [piece for piece in self._waiting if piece.job.abandoned]
        wanted = [piece for piece in self._waiting if not piece.job.abandoned]
        order = wanted if self._by_age else heapq.nsmallest(self._most, wanted, key=self._rank)
        self._by_age = not self._by_age
        taken, images = [], 0
        for piece in order:
            if taken and images + len(piece) > self._most:
                break
            taken.append(piece)
            images += len(piece)
        self._count(taken)
        taken += gone
        out = set(map(id, taken))
        self._waiting = deque(piece for piece in self._waiting if id(piece) not in out)
        self._images -= sum(map(len, taken))
        return taken

    def _rank(self, piece: Piece) -> tuple[int, int, int]:
        client = piece.job.client
        return self._had.get(client[0], 0), self._had.get(client, 0), piece.job.images

    def _count(self, taken: list[Piece]) -> None:
        if len(self._had) > REMEMBERED:
            self._had.clear()
        for piece in taken:
            client = piece.job.client
            self._had[client[0]] += len(piece)
            self._had[client] += len(piece)
