"""Answers in columns: the same as one by one, in parts too."""

from __future__ import annotations

import numpy as np
import pytest

from metavib.serving.predictions import Predictions


def some(images: int = 3, **other) -> Predictions:
    given = {
        "classes": ("cat", "dog"),
        "probabilities": np.linspace(0.2, 0.9, images)[:, None] * [1, -1] + [0, 1],
        "entropy": np.arange(images) / 10,
        "model_entropy": np.arange(images) / 100,
        "unsure": np.arange(images) > 0,
        "distances": np.arange(2.0 * images).reshape(images, 2),
        "classifiers": np.arange(4.0 * images).reshape(images, 2, 2),
    }
    return Predictions(**(given | other))


def test_a_row_is_an_image():
    first, _, last = some()
    assert (first.label, first.probability) == ("dog", pytest.approx(0.8))
    assert (last.label, last.probability) == ("cat", pytest.approx(0.9))
    assert first.probabilities == pytest.approx({"cat": 0.2, "dog": 0.8})
    assert (first.unsure, last.unsure) == (False, True)
    assert last.distances == {"cat": 4.0, "dog": 5.0}
    assert last.classifiers == ((8.0, 9.0), (10.0, 11.0))
    assert (last.entropy, last.model_entropy) == (0.2, 0.02)


def test_what_is_not_known_is_empty_for_every_image():
    for one in some(unsure=None, distances=None, classifiers=None):
        assert (one.unsure, one.distances, one.classifiers) == (None, {}, ())


@pytest.mark.parametrize("missing", [{}, {"unsure": None, "distances": None, "classifiers": None}])
def test_a_part_has_the_rows_of_the_whole(missing):
    whole = some(5, **missing)
    part = whole.part(slice(1, 3))
    assert len(part) == 2
    assert list(part) == list(whole)[1:3]
