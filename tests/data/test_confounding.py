"""Cramer's V at its edges, and what is said of counts."""

from __future__ import annotations

import pytest

from metavib.data.confounding import cramers_v, remarks_on_counts


def test_independent_counts_have_none_and_one_class_a_domain_has_all():
    assert cramers_v({"a": {"x": 10, "y": 20}, "b": {"x": 30, "y": 60}}) == pytest.approx(0)
    assert cramers_v({"a": {"x": 10}, "b": {"y": 60}}) == pytest.approx(1)
    assert cramers_v({"a": {"x": 10, "y": 3}}) == 0


def test_a_value_by_hand():
    # Expected 15 each; chi squared = 4 * 25 / 15 = 6.667; V = sqrt(6.667 / 60).
    assert cramers_v({"a": {"x": 10, "y": 20}, "b": {"x": 20, "y": 10}}) == pytest.approx(1 / 3)


def test_confounded_and_small_classes_are_named():
    (confounded,) = remarks_on_counts({"a": {"x": 100, "y": 12}, "b": {"x": 11, "y": 100}})
    assert "confounded (Cramer's V = 0.7" in confounded
    (small,) = remarks_on_counts({"a": {"x": 40, "y": 40}, "b": {"x": 9, "y": 12}})
    assert small.endswith("too small to measure there: 'x' in b has 9")
    (many,) = remarks_on_counts({domain: {"x": 4, "y": 5} for domain in "abc"})
    assert many.endswith("'x' in a has 4, 'x' in b has 4, 'x' in c has 4, and 3 more")
    assert remarks_on_counts({"a": {"x": 50, "y": 40}, "b": {"x": 50, "y": 40}}) == []
