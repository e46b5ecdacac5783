from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metavib.reports.confusion import confusion
from metavib.reports.figure import Figure


def test_rows_are_truths_columns_are_answers_and_runs_of_a_method_add_up(judged: Callable[..., Any]) -> None:
    (figure,) = confusion([judged(target="0"), judged(target="75"), judged(algorithm="erm")])
    assert isinstance(figure, Figure)
    counts = {row[:3]: row[3] for row in figure.rows}
    assert len(counts) == 2 * 9
    assert counts["MetaVIB", "a", "a"] == 2
    assert counts["MetaVIB", "b", "a"] == 2  # the third image of each run
    assert counts["MetaVIB", "a", "b"] == 0
    assert counts["ERM", "b", "a"] == 1
    assert "b taken for a" in figure.caption


def test_without_an_error_the_caption_names_none(judged: Callable[..., Any]) -> None:
    (figure,) = confusion([judged(labels=(0, 1, 0, 2))])
    assert isinstance(figure, Figure)
    assert "taken for" not in figure.caption
