"""Signs of life, looked at without waiting: a look is a second."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

from metavib.core.processes.watch import ALARMED, SILENT, UNBORN, Verdict, Watch

Seen = tuple[dict[int, bytes], dict[int, int]]


class Looking:
    """A process that looks when it is told to."""

    def __init__(self, store: Any, rank: int, size: int = 3) -> None:
        self.watch = Watch(store, rank, size)
        others = range(1, size) if rank == 0 else [0]
        self.seen, self.missed = dict.fromkeys(others, b""), dict.fromkeys(others, 0)
        self.looks = 0

    def look(self) -> Verdict | None:
        self.looks += 1
        return self.watch._look(self.looks, self.seen, self.missed)


@pytest.fixture
def store() -> Any:
    return dist.HashStore()  # type: ignore[attr-defined]


@pytest.fixture
def three(store: Any) -> list[Looking]:
    found = [Looking(store, rank) for rank in range(3)]
    for one in found:
        store.set(f"host/{one.watch.rank}", f"machine{one.watch.rank}")
        assert one.look() is None
    return found


def looks_until_a_verdict(one: Looking, *others: Looking) -> tuple[int, Verdict]:
    for count in range(1, 2 * UNBORN):
        for other in others:
            other.look()
        if (verdict := one.look()) is not None:
            return count, verdict
    raise AssertionError("no verdict")


def test_all_that_live_are_left_alone(three: list[Looking]) -> None:
    for _ in range(3 * SILENT):
        assert [one.look() for one in three] == [None, None, None]


def test_the_first_process_names_the_one_that_died_and_all_others_hear_it(three: list[Looking]) -> None:
    three[0].watch.advice = lambda: "Do this."
    first, dead, other = three
    count, verdict = looks_until_a_verdict(first, other)
    assert SILENT <= count <= SILENT + 2
    assert verdict.by == 0
    assert verdict.text.startswith("process 1 of 3, on machine1, stopped: ")
    assert verdict.text.endswith("Do this.")
    assert other.look() == verdict
    assert dead.look() == verdict  # were it not dead after all


def test_the_others_name_the_first_process_and_one_of_them_speaks(three: list[Looking]) -> None:
    count, verdict = looks_until_a_verdict(three[1], three[2])
    assert SILENT <= count <= SILENT + 2
    assert "process 0 of 3, on machine0, stopped" in verdict.text
    assert {one.look() for one in three[1:]} == {verdict}


def test_after_an_alarm_the_dead_are_named_sooner(three: list[Looking]) -> None:
    three[2].watch.alarmed = True
    count, verdict = looks_until_a_verdict(three[0], three[2])
    assert ALARMED <= count <= ALARMED + 2
    assert "process 1" in verdict.text


def test_who_has_left_is_not_missed(three: list[Looking], store: Any) -> None:
    store.set("alive/1", b"left")
    for _ in range(3 * SILENT):
        assert three[2].look() is None
        assert three[0].look() is None


def test_who_has_never_come_is_given_more_time(store: Any) -> None:
    count, verdict = looks_until_a_verdict(Looking(store, 0, 2))
    assert count == UNBORN
    assert verdict.text.startswith("process 1 of 2, on ?, stopped")


def test_the_first_reason_is_the_only_one(three: list[Looking]) -> None:
    assert three[1].watch.post("my disk is full") == Verdict(1, "my disk is full")
    assert three[0].watch.post("no: mine") == Verdict(1, "my disk is full")
    assert three[2].look() == Verdict(1, "my disk is full")


def test_a_process_lives_and_leaves_in_good_order(store: Any) -> None:
    watch = Watch(store, 0, 1)
    watch.start()
    assert store.check(["alive/0"])  # who dies in the next second was here
    watch.leave()
    assert store.get("alive/0") == b"left"
    assert watch.verdict is None
    assert watch.heard(0) is None
