"""Fair turns: one image does not wait for thousands of another client, and nobody waits for ever."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from metavib.serving.http.turns import REMEMBERED, Client, Turns

_numbers = itertools.count()


@dataclass(eq=False)
class Job:
    client: Client
    weight: float = 1
    abandoned: bool = False
    number: int = field(default_factory=_numbers.__next__)


@dataclass(eq=False)
class Piece:
    job: Job
    name: str = ""
    images: int = 1
    seconds: float = 0.0

    def __len__(self) -> int:
        return self.images


def request(client: Client, images: int, name: str = "") -> list[Piece]:
    job = Job(client, images)
    return [Piece(job, name or client[0]) for _ in range(images)]


def names(taken: list[Piece]) -> list[str]:
    return [piece.name for piece in taken]


def batches(turns: Turns, most: int = 1000) -> list[list[str]]:
    found = []
    while turns and len(found) < most:
        found.append(names(turns.take()))
    return found


def test_where_all_fit_all_are_taken_in_their_order():
    turns: Turns[Piece] = Turns(8)
    turns.extend(request(("a", 1), 3, "a") + request(("b", 1), 4, "b") + request(("a", 2), 1, "c"))
    assert len(turns.take()) == 8
    assert not turns
    turns.extend(request(("b", 1), 1, "b") + request(("a", 1), 2, "a"))
    assert names(turns.take()) == ["b", "a", "a"]


def test_one_image_is_in_the_second_batch_however_many_others_wait():
    for polite in (("other", 1), ("greedy", 99)):  # another address, or only another connection
        turns: Turns[Piece] = Turns(16)
        for port in range(60):
            turns.extend(request(("greedy", port), 64))
        for _ in range(10):
            turns.take()
        turns.extend(request(polite, 1, "polite"))
        assert any("polite" in batch for batch in batches(turns, 2))


def test_addresses_share_whatever_the_number_of_their_connections():
    turns: Turns[Piece] = Turns(10)
    for port in range(50):
        turns.extend(request(("many", port), 10))
    turns.extend(request(("one", 1), 60))
    taken = [name for batch in batches(turns, 12) for name in batch]
    assert taken.count("one") >= 50


def test_those_who_wait_longest_are_not_passed_over_for_ever():
    turns: Turns[Piece] = Turns(4)
    turns.extend(request(("a", 1), 8, "large"))
    seen = []
    for port in range(2, 30):
        turns.extend(request(("a", port), 1, "small") + request(("b", port), 3, "small"))
        seen += names(turns.take())
    assert seen.count("large") == 8


def test_what_is_larger_than_a_batch_comes_alone_and_all_come_once():
    turns: Turns[Piece] = Turns(8)
    sizes = [9, 3, 30, 2, 8, 1, 7, 5]
    turns.extend(Piece(Job(("a", number), size), str(number), size) for number, size in enumerate(sizes))
    found = batches(turns)
    assert sorted(name for batch in found for name in batch) == [str(number) for number in range(8)]
    for batch in found:
        assert len(batch) == 1 or sum(sizes[int(name)] for name in batch) <= 8


def test_what_nobody_waits_for_takes_no_place_in_a_batch():
    turns: Turns[Piece] = Turns(2)
    gone, here = request(("a", 1), 50, "gone"), request(("a", 2), 3, "here")
    turns.extend(gone + here)
    gone[0].job.abandoned = True
    first = names(turns.take())
    assert (first.count("gone"), first.count("here")) == (50, 2)


def test_what_is_remembered_of_clients_is_bounded():
    turns: Turns[Piece] = Turns(1)
    turns.extend(request(("x", 0), 2))
    for port in range(REMEMBERED + 100):
        turns.extend(request((str(port), 1), 1))
        turns.take()
    assert len(turns._had) <= REMEMBERED + 2


def test_where_many_wait_few_are_taken_at_a_time():
    turns: Turns[Piece] = Turns(16, few=4)
    turns.extend(request(("a", 1), 16))
    assert len(turns.take()) == 16  # all of them fit
    turns.extend(request(("a", 1), 10) + request(("a", 2), 10))
    assert [len(batch) for batch in batches(turns)] == [4, 16]
    turns.extend(request(("a", 1), 40))
    turns.take()
    turns.extend(request(("a", 2), 1, "polite"))
    assert any("polite" in batch for batch in batches(turns, 2))


def test_one_image_after_the_other_does_not_wait_for_the_first_requests_of_many():
    turns: Turns[Piece] = Turns(16, few=4)
    for port in range(60):
        turns.extend(request(("a", port), 64))
    for _ in range(20):  # over one connection, all of them before any other has had its first 64
        turns.extend(request(("a", 99), 1, "polite"))
        assert any("polite" in batch for batch in batches(turns, 2))


def test_connections_that_are_opened_anew_do_not_keep_a_kept_one_waiting():
    turns: Turns[Piece] = Turns(256, few=64)
    for port in range(100):
        turns.extend(request(("a", port), 64))
    for port in range(1000, 1200):
        turns.extend(request(("a", port), 64))  # new ones all the time, more than can be answered
        turns.extend(request(("a", 999), 1, "polite"))
        assert any("polite" in names(turns.take()) for _ in range(4))


def done_first(turns: Turns[Piece], done: int, seconds: float = 0.04) -> list[str]:
    """The names of the pieces that are done before the batch is over."""
    taken = turns.take()
    for piece in taken[:done]:
        piece.seconds = seconds
    if taken[done:]:
        turns.put_back(taken[done:], taken[:done])
    return names(taken[:done])


def test_what_is_put_back_comes_in_its_order_and_once():
    turns: Turns[Piece] = Turns(16)
    job = Job(("a", 1), 10)
    turns.extend(Piece(job, str(number)) for number in range(10))
    found = [name for _ in range(5) for name in done_first(turns, 2)]
    assert found == [str(number) for number in range(10)]
    assert not turns


def test_after_an_interruption_a_new_client_comes_before_the_rest_though_all_fit():
    turns: Turns[Piece] = Turns(256, few=64)
    for _ in range(3):
        turns.extend(request(("a", 1), 64, "greedy"))
    assert done_first(turns, 2) == ["greedy"] * 2
    for _ in range(10):
        turns.extend(request(("a", 2), 1, "polite"))
        assert "polite" in done_first(turns, 2) + done_first(turns, 2)


def test_requests_that_were_put_back_keep_their_age():
    turns: Turns[Piece] = Turns(16)
    turns.extend(request(("a", 1), 2, "first") + request(("b", 1), 2, "second"))
    assert done_first(turns, 1) == ["first"]
    turns.extend(request(("c", 1), 1, "third"))
    seen = [name for _ in range(4) for name in done_first(turns, 1)]
    assert sorted(seen) == ["first", "second", "second", "third"]
    turns.extend(request(("a", 1), 4, "old"))
    done_first(turns, 1)
    turns.extend(request(("b", 1), 4, "new"))
    done_first(turns, 1)  # by who had least
    assert done_first(turns, 2) == ["old", "old"]


def test_whose_images_took_long_comes_after_those_whose_took_little():
    turns: Turns[Piece] = Turns(16)
    for client in ("slow", "quick"):
        turns.extend(request((client, 1), 8, client))
    taken = turns.take()
    for piece, seconds in zip(taken, [0.04] * 8 + [0.0001], strict=False):
        piece.seconds = seconds
    turns.put_back(taken[9:], taken[:9])
    turns.extend(request(("slow", 1), 1, "slow"))
    assert names(turns.take())[:7] == ["quick"] * 7


def test_what_is_put_back_is_not_counted_twice():
    turns: Turns[Piece] = Turns(16)
    turns.extend(request(("a", 1), 8))
    done_first(turns, 3, seconds=0.0)
    assert turns._had[("a", 1)] == turns._had["a"] == 3
    done_first(turns, 5, seconds=0.0)
    assert turns._had[("a", 1)] == turns._had["a"] == 8


def test_the_request_that_is_expected_to_take_least_comes_first():
    turns: Turns[Piece] = Turns(16)
    turns.extend([Piece(Job(("a", port), weight=100.0), "heavy") for port in range(10)])
    done_first(turns, 1)
    turns.extend([Piece(Job(("a", 11), weight=1.0), "light")])
    assert done_first(turns, 1) == ["light"]
