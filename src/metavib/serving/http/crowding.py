"""Too many connections: who makes way for a new one."""

import collections
import heapq
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

AT_ONCE = 16  # connections that are ended together: to choose them takes a while


@runtime_checkable
class Guest(Protocol):
    """A connection, as far as it matters here."""

    transport: Any
    client: tuple[str, int] | None
    last: int  # moment at which it last sent something

    def may_go(self) -> bool:
        """Whether nothing is computed for it, or it does not take what was."""

    def make_way(self) -> None:
        """End."""


def make_room(newcomer: Guest, guests: Iterable[Guest], most: int) -> bool:
    """End those that have been quiet longest, of the address that has most; whether there is room then."""
    others = [one for one in guests if one is not newcomer and not one.transport.is_closing()]
    over = len(others) + 1 - most
    if over <= 0:
        return True
    held_by = collections.Counter(_address(one) for one in others)
    quiet = heapq.nsmallest(
        max(over, min(AT_ONCE, most // AT_ONCE)),
        (one for one in others if one.may_go()),
        key=lambda one: (-held_by[_address(one)], one.last),
    )
    for one in quiet:
        one.make_way()
    return len(quiet) >= over


def _address(one: Guest) -> str:
    return one.client[0] if one.client else ""
