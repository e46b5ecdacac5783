"""How large a grid is: seeds, words, and the question before it begins."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

from metavib.core.errors import UserError
from metavib.interfaces.cli.training.grid_cells import (
    MOST_SEEDS,
    check_size,
    confirm,
    seeds_of,
    size_in_words,
)


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("3", [0, 1, 2]), ("1", [0]), ("3,5", [3, 5]), ("90,", [90]), ("3,5,", [3, 5]), (" 3 , 5", [3, 5])],
)
def test_a_number_is_how_many_and_a_comma_makes_a_list(text: str, seeds: list[int]) -> None:
    assert seeds_of(text) == seeds


@pytest.mark.parametrize(
    "text",
    ["0", "-1", "1e9", "1000000000", str(MOST_SEEDS + 1), "9" * 5000, "", ",", "3,,5", "3,-5", "many", "1.5"],
)
def test_what_is_no_number_of_seeds_is_refused_before_they_are_counted_out(text: str) -> None:
    with pytest.raises(UserError, match="--seed 90") as error:
        seeds_of(text)
    assert "\n" not in str(error.value)


def test_a_grid_is_told_by_what_it_is_made_of(cell: Callable[..., Any]) -> None:
    def words(**changes: list[Any]) -> str:
        cells = [cell()]
        for name, values in changes.items():
            cells = [
                (*one, (name, value)) for one in ([()] if cells == [cell()] else cells) for value in values
            ]
        return size_in_words([cell(**dict(one)) for one in cells])

    assert size_in_words([cell()]) == "1 run"
    assert words(seed=[1, 2, 3], target=["photo", "sketch"]) == "3 seeds x 2 targets = 6 runs"
    assert words(target=["photo", "sketch"]) == "2 targets = 2 runs"
    assert words(seed=[1, 2], algorithm=["erm", "vib"]) == "2 seeds x 2 algorithms = 4 runs"
    assert words(seed=[1, 2], clip_norm=[1, 2, 3]) == "2 seeds x 3 algorithms and settings = 6 runs"


def test_runs_that_are_no_product_are_counted(cell: Callable[..., Any]) -> None:
    cells = [cell(seed=1), cell(seed=2), cell(seed=1, target="photo")]
    assert size_in_words(cells) == "3 runs"


def test_more_runs_than_anybody_trains_are_refused() -> None:
    check_size(range(1000), range(100))
    with pytest.raises(UserError, match="10,000,000,000 runs"):
        check_size(*[range(1000)] * 3, range(10))


class Typed(io.StringIO):
    """A stdin with a terminal behind it, or not."""

    def __init__(self, text: str, *, terminal: bool = True) -> None:
        super().__init__(text)
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Typed]:
    def put(text: str, *, stdin: bool = True, stderr: bool = True) -> Typed:
        typed, shown = Typed(text, terminal=stdin), Typed("", terminal=stderr)
        monkeypatch.setattr("sys.stdin", typed)
        monkeypatch.setattr("sys.stderr", shown)
        return shown

    return put


@pytest.mark.parametrize("answer", ["y\n", "Y\n", " yes \n"])
def test_yes_begins(terminal: Callable[..., Typed], answer: str) -> None:
    shown = terminal(answer)
    confirm("Train 360 runs?", yes=False, instead="Or not.")
    assert shown.getvalue() == "Train 360 runs? [y/N] "


@pytest.mark.parametrize("answer", ["n\n", "\n", "", "what\n"])
def test_anything_else_trains_nothing_and_says_what_to_do(
    terminal: Callable[..., Typed], answer: str
) -> None:
    terminal(answer)
    with pytest.raises(UserError, match=r"nothing was trained\. Or not\."):
        confirm("Train 360 runs?", yes=False, instead="Or not.")


@pytest.mark.parametrize(
    ("stdin", "stderr", "yes"), [(False, True, False), (True, False, False), (True, True, True)]
)
def test_nobody_is_asked_without_a_terminal_or_with_yes(
    terminal: Callable[..., Typed], stdin: bool, stderr: bool, yes: bool
) -> None:
    shown = terminal("n\n", stdin=stdin, stderr=stderr)
    confirm("Train 360 runs?", yes=yes, instead="Or not.")
    assert shown.getvalue() == ""
