from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from metavib.reports.cases import cases, classifiers, picture, preferred
from metavib.reports.figure import Figure, Missing

Make = Callable[..., Any]


def test_the_closest_two_answers_come_first(judged: Make) -> None:
    unseen = judged().unseen  # margins .3, .2, .05, .7; the third is wrong
    assert unseen.ambiguous_first(right=True, count=2) == [1, 0]
    assert unseen.ambiguous_first(right=True, count=9) == [1, 0, 3]
    assert unseen.ambiguous_first(right=False, count=9) == [2]


def test_cases_show_truth_and_the_two_most_probable_classes(judged: Make) -> None:
    (figure,) = cases([judged()])
    assert isinstance(figure, Figure)
    assert figure.rows[:2] == (("wrong", 2, "b", "a", 0.4), ("wrong", 2, "b", "b", 0.35))
    assert [row[1] for row in figure.rows[2::2]] == [1, 0, 3]


def test_metavib_is_shown_where_it_is_there(judged: Make) -> None:
    erm, metavib = judged(algorithm="erm"), judged()
    assert preferred([erm, metavib]) is metavib
    assert preferred([erm]) is erm


def test_every_drawn_classifier_has_its_say(judged: Make) -> None:
    drawn = torch.rand(5, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    drawn /= drawn.sum(dim=-1, keepdim=True)
    (figure,) = classifiers([judged(algorithm="erm"), judged(by_classifier=drawn)])
    assert isinstance(figure, Figure)
    assert len(figure.rows) == 4 * 3 * (1 + 5)
    found = {row[:4]: row[4] for row in figure.rows}
    assert found[2, "b", "a", "mean"] == 0.4
    assert found[2, "b", "a", "draw 3"] == drawn[3, 2, 0].item()


def test_a_method_with_one_classifier_leaves_a_line(judged: Make) -> None:
    (missing,) = classifiers([judged(algorithm="erm")])
    assert isinstance(missing, Missing)
    assert "metavib" in missing.why


def test_pictures_are_small_grey_or_coloured() -> None:
    assert picture(np.zeros((1, 28, 28), np.uint8)).shape == (28, 28)
    assert picture(np.zeros((3, 224, 224), np.uint8)).shape == (96, 96, 3)
