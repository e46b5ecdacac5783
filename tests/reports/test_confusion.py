from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

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


def test_of_thousands_of_classes_those_with_the_most_errors_are_drawn(judged: Callable[..., Any]) -> None:
    classes = 3000
    labels = torch.arange(2000, 2200)
    answers = labels.clone()
    answers[:150] = labels[1:151]  # 150 mistakes, each for the next class
    probabilities = torch.zeros(200, classes).index_put((torch.arange(200), answers), torch.ones(()))
    results = {"classes": [f"c{number}" for number in range(classes)]}
    (figure,) = confusion([judged(probabilities, labels.tolist(), results=results)])
    assert isinstance(figure, Figure)
    assert len(figure.rows) == 100 * 100
    counts = {row[:3]: row[3] for row in figure.rows}
    assert counts["MetaVIB", "c2000", "c2001"] == 1
    assert counts["MetaVIB", "c2099", "c2099"] == 0
    assert "Of 3,000 classes, the 100 with the most errors." in figure.caption
