from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from metavib.core import terminal
from metavib.core.terminal import Bar, Pace, counting_bar, duration, mean_and_deviation, say, table


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    # Not in the module `time` itself: other threads of this process sleep by it.
    monkeypatch.setattr(terminal, "time", SimpleNamespace(monotonic=clock))
    return clock


def test_a_table_has_its_first_column_on_the_left_and_numbers_on_the_right() -> None:
    lines = table(["domain", "erm"], [["photo", "9.5"], ["sketch 2", "10.25"]]).splitlines()
    assert lines == ["domain      erm", "--------  -----", "photo       9.5", "sketch 2  10.25"]


def test_a_table_of_words_goes_to_the_left_and_lines_have_no_trailing_blanks() -> None:
    lines = table(["name", "meaning"], [["a", "one"], ["b", "the other"]], left=True).splitlines()
    assert lines == ["name  meaning", "----  ---------", "a     one", "b     the other"]


@pytest.mark.parametrize(
    ("values", "words"), [([], "-"), ([71.0], "71.00"), ([70.0, 72.0], "71.00 +- 1.41")], ids=str
)
def test_a_mean_has_its_deviation_where_there_are_two_values(values: list[float], words: str) -> None:
    assert mean_and_deviation(values) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3599.7, "1 h 00 min"),
        (3600 * 30 + 61, "30 h 01 min"),
    ],
)
def test_durations_are_told_as_people_tell_them(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_without_a_terminal_a_bar_is_a_line_now_and_then(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with Bar("training", 10) as bar:
        for done in range(11):
            bar.update(done, f"loss {done}")
            clock.now += 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "training 3/10  loss 3  14 s left",
        "training 6/10  loss 6  8 s left",
        "training 9/10  loss 9  2 s left",
        "training 10/10  loss 10",
    ]


def test_the_time_left_of_a_resumed_run_counts_what_was_done_now(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with Bar("training", 100) as bar:
        bar.update(90)
        clock.now += 60
        bar.update(95)
    assert capsys.readouterr().err == "training 95/100  1 min 00 s left\n"


def test_the_time_left_counts_work_that_is_no_step(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Bar(
        "training", 10
    ) as bar:  # of which each step is 0.5, and the last one is followed by as much again
        for done in range(11):
            bar.update(done, worked=done / 2)
            clock.now += 6
    assert capsys.readouterr().err.splitlines()[-3:] == [
        "training 8/10  1 min 12 s left",
        "training 9/10  1 min 06 s left",
        "training 10/10  1 min 00 s left",
    ]


def estimates(
    clock: Clock, bar: Bar, seconds_a_step: Callable[[int], float], *, validation: float
) -> list[tuple[float, float]]:
    """What a bar says of 200 steps with a validation after each tenth, and how long it really took, in seconds.

    A validation takes as long as 5 steps, and is said to take as long as 4.
    """
    steps, every, work = 200, 10, 4.0
    in_all = steps + steps // every * work
    said, at = [], []
    bar.update(0)
    for step in range(1, steps + 1):
        clock.now += seconds_a_step(step) + (validation if step % every == 0 else 0)
        done = step + step // every * work
        bar.update(step, worked=steps * done / in_all)
        left = bar.pace.seconds_for(steps - steps * done / in_all)
        assert left is not None
        said.append(left)
        at.append(clock.now)
    return [(left, at[-1] - now) for left, now in zip(said, at, strict=True)]


def test_an_estimate_does_not_jump_at_a_validation(clock: Clock) -> None:
    with Bar("training", 200, last_line=False) as bar:
        found = estimates(clock, bar, lambda step: 3.0, validation=15.0)
    for said, true in found[:-20]:
        assert 0.9 * true < said < 1.1 * true  # also from the first step on, when none was validated yet
    for (before, _), (after, _) in itertools.pairwise(found):
        assert abs(after - before) < 60  # seconds, of 15 minutes


def test_steps_that_take_longer_now_and_then_move_an_estimate_little(clock: Clock) -> None:
    with Bar("training", 200, last_line=False) as bar:
        found = estimates(clock, bar, lambda step: 9.0 if step % 7 == 0 else 2.0, validation=15.0)
    for said, true in found[20:-20]:
        assert 0.8 * true < said < 1.2 * true


def test_where_a_machine_becomes_slower_an_estimate_follows() -> None:
    pace = Pace()
    for _ in range(60):
        pace.note(2.0, 1.0)
    assert pace.seconds_for(10) == pytest.approx(20)
    for _ in range(60):
        pace.note(6.0, 1.0)
    seconds = pace.seconds_for(10)
    assert seconds is not None
    assert 50 < seconds < 60


def test_without_anything_done_there_is_no_estimate() -> None:
    pace = Pace()
    assert pace.seconds_for(1) is None
    pace.note(3.0, 0.0)
    assert pace.seconds_for(1) is None


def test_what_is_said_beside_a_bar_is_a_line_of_its_own(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with Bar("training", 1, last_line=False) as bar:
        bar.update(0)
        bar.say("a note")
        bar.update(1)
    assert capsys.readouterr() == ("", "a note\n")


def test_in_a_terminal_a_bar_is_drawn_and_let_go_of(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Bar("training", 3) as bar:
        bar.update(0)
        assert bar.rich is not None
        bar.say("a note [not markup]")
        bar.update(3, "loss 1")
        assert bar.rich is None
    out, err = capsys.readouterr()
    assert out == ""
    assert "a note [not markup]" in err
    assert "3/3" in err


def test_reading_shows_one_bar_for_each_domain_and_only_where_it_takes_long(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with counting_bar("reading images") as reading:
        for total in (2, 3):
            for done in range(total + 1):
                reading(done, total)
                clock.now += 3 if total == 3 else 1
    assert capsys.readouterr().err == "reading images 2/3  3 s left\n"


def test_what_is_said_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    say("a line")
    assert capsys.readouterr() == ("", "a line\n")


def test_where_nobody_knows_how_much_there_is_a_bar_counts(clock: Clock, capsys) -> None:
    with Bar("images", None) as bar:
        bar.update(0)
        clock.now += 6
        bar.update(64)
    assert capsys.readouterr().err == "images 64\n"


def test_a_hidden_bar_only_says_what_it_has_to_say(clock: Clock, capsys) -> None:
    with Bar("images", 2, hidden=True) as bar:
        bar.update(0)
        bar.say("a word")
        clock.now += 60
        bar.update(2)
    assert capsys.readouterr().err == "a word\n"


def test_a_process_that_is_silent_shows_nothing(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal._Terminal, "silent", False)
    terminal.be_silent()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with Bar("training", 2) as bar:
        bar.update(1)
        bar.say("a note")
        bar.update(2)
    say("a line")
    assert capsys.readouterr().err == ""


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel behind IPython, as Jupyter has it."""
    ipython = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", ipython)


@pytest.mark.usefixtures("notebook")
def test_in_a_notebook_progress_is_one_line_that_changes(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with Bar("training", 1000) as bar:
        for done in range(1, 1001):
            clock.now += 0.01
            bar.update(done, "loss 1.0" if done < 500 else "")
        bar.say("over")
    text = capsys.readouterr().err
    assert text.count("\n") == 2  # the line, and what was said
    assert text.count("\r") <= 1000 * 0.01 / 0.5 + 1
    assert "training 1000/1000" in text
    assert text.endswith("\nover\n")


@pytest.mark.usefixtures("notebook")
def test_what_is_said_in_a_notebook_begins_a_line_of_its_own(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with Bar("training", 10) as bar:
        bar.update(0)
        clock.now += 1
        bar.update(1)
        bar.say("a note")
    assert capsys.readouterr().err == "\rtraining 1/10  9 s left\na note\n"


def test_ipython_in_a_terminal_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=object))
    assert not terminal.in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert not terminal.in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())  # while another thread imports it
    assert not terminal.in_notebook()
