"""Who makes way where too many connections are open."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from metavib.serving.http.crowding import AT_ONCE, make_room


class Guest:
    def __init__(self, last: int, address: str = "a", *, busy: bool = False, closing: bool = False) -> None:
        self.last, self.client, self.busy, self.went = last, (address, last), busy, False
        self.transport = SimpleNamespace(is_closing=lambda: closing or self.went)

    def may_go(self) -> bool:
        return not self.busy

    def make_way(self) -> None:
        self.went = True


def ended(guests: list[Guest]) -> list[int]:
    return [guest.last for guest in guests if guest.went]


def crowd(guests: list[Guest], most: int) -> tuple[Any, list[int]]:
    newcomer = Guest(10**6, "z")
    return make_room(newcomer, [*guests, newcomer], most), ended(guests)


def test_the_quietest_goes_first():
    assert crowd([Guest(3), Guest(1), Guest(2)], 3) == (True, [1])
    assert crowd([Guest(3), Guest(1), Guest(2)], 2) == (True, [1, 2])


def test_where_there_is_room_nobody_goes():
    assert crowd([Guest(1), Guest(2)], 3) == (True, [])
    assert crowd([Guest(1), Guest(2, closing=True), Guest(3)], 3) == (True, [])


def test_whoever_is_being_answered_stays():
    assert crowd([Guest(1, busy=True), Guest(2), Guest(3, busy=True)], 3) == (True, [2])
    assert crowd([Guest(number, busy=True) for number in range(3)], 3) == (False, [])


def test_the_address_with_most_connections_makes_way():
    guests = [Guest(1, "one"), *(Guest(number, "many") for number in range(2, 6))]
    assert crowd(guests, 5) == (True, [2])


def test_of_many_some_go_together_so_that_choosing_costs_little():
    room, went = crowd([Guest(number) for number in range(512)], 512)
    assert room
    assert went == list(range(AT_ONCE))
