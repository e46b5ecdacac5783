"""Answers as JSON is made of them: as the types describe them, whatever the model can tell."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import TypeAdapter

from metavib.serving.http.answers import Reply, answers_of
from metavib.serving.http.guards import json_of
from metavib.serving.http.refusals import Refusal, our_fault, too_large
from metavib.serving.http.uploads import Upload
from metavib.serving.predictions import Predictions


def told(probabilities: list[list[float]], **other) -> Predictions:
    rows = len(probabilities)
    given = {
        "classes": ("cat", "dog"),
        "probabilities": np.array(probabilities),
        "entropy": np.full(rows, 0.5),
        "model_entropy": np.full(rows, 0.1),
        "unsure": np.zeros(rows, dtype=bool),
        "distances": np.ones((rows, 2)),
        "classifiers": np.array(probabilities)[:, None].repeat(3, axis=1),
    }
    return Predictions(**(given | other))


def array(count: int) -> Upload:
    return Upload(b"", pixels=np.zeros((count, 28, 28), dtype=np.uint8))


@pytest.mark.parametrize("samples", [False, True])
@pytest.mark.parametrize("other", [{}, {"unsure": None, "distances": None, "classifiers": None}])
def test_they_are_what_is_described(other, samples):
    found = answers_of([Upload(b"x", "a.png")], [told([[0.25, 0.75]], **other)], None, samples)
    described = TypeAdapter(Reply).validate_json(json_of(found), strict=True)
    (answer,) = described.predictions
    assert answer.nearest is None  # it is left out unless it was asked for
    assert found["predictions"] == [{n: v for n, v in vars(answer).items() if n != "nearest"}]
    assert (answer.image, answer.name, answer.label, answer.probability) == (0, "a.png", "dog", 0.75)
    assert answer.distances == ({} if other else {"cat": 1.0, "dog": 1.0})
    drawn = [] if other else [{"cat": 0.25, "dog": 0.75}] * 3
    assert answer.classifiers == (drawn if samples else None)


def test_images_have_their_numbers_and_problems_their_place():
    outcomes = [told([[0.9, 0.1], [0.2, 0.8]]), too_large("is large", "Make it smaller."), told([[0.6, 0.4]])]
    found = answers_of([array(2), Upload(b"x", "big.png"), array(1)], outcomes, None, False)
    assert [(one["image"], one["name"], one["label"]) for one in found["predictions"]] == [
        (0, "image 1", "cat"),
        (1, "image 2", "dog"),
        (3, "image 4", "cat"),
    ]
    (problem,) = TypeAdapter(Reply).validate_python(found).problems
    assert (problem.image, problem.name, problem.status) == (2, "big.png", 413)


def test_the_most_probable_come_first_where_only_some_are_asked_for():
    (answer,) = answers_of([array(1)], [told([[0.25, 0.75]])], 1, False)["predictions"]
    assert answer["probabilities"] == {"dog": 0.75}
    (answer,) = answers_of([array(1)], [told([[0.25, 0.75]])], 5, False)["predictions"]
    assert list(answer["probabilities"]) == ["dog", "cat"]


def test_where_nothing_could_be_answered_the_first_problem_is_the_answer():
    with pytest.raises(Refusal, match="is large"):
        answers_of([array(1), array(2)], [too_large("is large", "x"), our_fault()], None, False)


def test_the_problem_that_is_raised_does_not_hold_the_request():
    kept = too_large("is large", "x")
    with pytest.raises(Refusal) as raised:
        answers_of([array(1)], [kept], None, False)
    assert raised.value is not kept  # or it would refer to the outcomes, which refer to it
    assert kept.__traceback__ is None
    assert vars(raised.value) == vars(kept)
