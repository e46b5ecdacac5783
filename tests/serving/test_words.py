"""Answers as people say them."""

import pytest

from metavib.serving.words import FOREIGN, in_words, whole_percent


@pytest.mark.parametrize(
    ("probabilities", "unsure", "foreign", "expected"),
    [
        ({"dog": 0.93, "horse": 0.07}, False, False, "dog, 93 %"),
        ({"dog": 0.93, "horse": 0.07}, None, None, "dog, 93 %"),
        ({"horse": 0.4, "dog": 0.5}, True, False, "not sure: dog or horse"),
        ({"horse": 0.1, "dog": 0.7}, True, None, "not sure: perhaps dog"),
        ({"dog": 1.0}, True, False, "not sure: perhaps dog"),
        ({"dog": 1.0}, False, True, FOREIGN),
        ({"dog": 1.0}, True, True, FOREIGN),
    ],
)
def test_words(probabilities, unsure, foreign, expected):
    assert in_words(probabilities, unsure=unsure, foreign=foreign) == expected


def test_only_what_is_certain_is_a_hundred():
    assert whole_percent(0.9999) == 99
    assert whole_percent(1.0) == 100
    assert whole_percent(0.0) == 0
    assert whole_percent(0.994) == 99
