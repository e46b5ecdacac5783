from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from metavib.reports.figure import Figure
from metavib.reports.judged import calibrated
from metavib.reports.uncertainty import (
    detection_of_errors,
    fitted_temperature,
    pooled_by_method,
    risks_of,
    uncertainty,
)

Make = Callable[..., Any]


def test_risk_is_the_share_of_errors_among_the_surest(answers: Make) -> None:
    # Surest first: right (.9), wrong (.8), right (.7), wrong (.6).
    given = answers([[0.9, 0.1], [0.6, 0.4], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1, 1])
    coverage, risk, _ = risks_of(given)
    assert coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert risk.tolist() == pytest.approx([0, 1 / 2, 1 / 3, 1 / 2])


def test_a_model_that_is_never_wrong_has_no_risk(answers: Make) -> None:
    assert risks_of(answers([[0.9, 0.1], [0.6, 0.4]], [0, 0])).risk.tolist() == [0, 0]


def test_errors_that_are_all_less_sure_are_found_without_fail(answers: Make) -> None:
    sure, unsure = [0.9, 0.1], [0.6, 0.4]
    assert detection_of_errors(answers([sure, unsure, unsure], [0, 1, 1])) == 1
    assert detection_of_errors(answers([sure, unsure, unsure], [1, 0, 0])) == 0
    assert detection_of_errors(answers([sure, sure], [0, 1])) == 0.5
    assert detection_of_errors(answers([sure, sure], [0, 0])) is None
    assert detection_of_errors(answers([sure, sure], [1, 1])) is None


def test_the_temperature_of_a_model_that_is_too_sure_is_found(answers: Make) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(4000, 3, generator=generator, dtype=torch.float64)
    honest = torch.softmax(logits, dim=1)
    labels = torch.multinomial(honest, 1, generator=generator).squeeze(1).tolist()
    assert fitted_temperature(answers(honest, labels)) == pytest.approx(1, abs=0.1)
    assert fitted_temperature(answers(torch.softmax(3 * logits, dim=1), labels)) == pytest.approx(3, abs=0.3)


def test_a_temperature_changes_confidence_and_no_answer(answers: Make) -> None:
    given = answers([[0.7, 0.2, 0.1], [0.0, 0.1, 0.9]], [0, 2])
    torch.testing.assert_close(calibrated(given, 1.0).probabilities, given.probabilities)
    softer = calibrated(given, 2.0)
    assert torch.equal(softer.predicted, given.predicted)
    roots = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64).sqrt()
    torch.testing.assert_close(softer.probabilities[0], roots / roots.sum())
    assert softer.probabilities.isfinite().all()


def test_the_runs_of_a_method_are_pooled(judged: Make, answers: Make) -> None:
    validation = answers([[0.6, 0.3, 0.1]] * 3, [0, 0, 1])
    runs = [judged(target=target, validation=validation) for target in ("0", "75")]
    both, erm = pooled_by_method([*runs, judged(algorithm="erm")])
    assert (both.title, len(both.answers.labels), len(both.temperatures)) == ("MetaVIB", 8, 2)
    assert both.tempered is not None
    assert len(both.tempered.labels) == 8
    assert (erm.title, erm.tempered) == ("ERM", None)


def test_the_figures_hold_the_numbers_they_draw(judged: Make) -> None:
    # Two classifiers that say 1 and 0 with certainty: all entropy is the model's.
    certain = torch.eye(3, dtype=torch.float64)[[0, 1, 1, 2]]
    drawn = torch.stack([certain, certain.roll(1, dims=1)])
    one = judged(probabilities=drawn.mean(dim=0), by_classifier=drawn)
    reliability, risk, parts, numbers = uncertainty([one, judged(algorithm="erm")])
    for figure in (reliability, risk, parts, numbers):
        assert isinstance(figure, Figure)
        assert figure.svg.startswith("<svg")
        assert len(figure.csv().splitlines()) == len(figure.rows) + 1
    assert isinstance(parts, Figure)
    mine = [row for row in parts.rows if row[0] == "MetaVIB"]
    assert all(row[3] == pytest.approx(0, abs=1e-9) for row in mine)
    assert all(row[4] == pytest.approx(math.log(2)) for row in mine)
    erm = [row for row in parts.rows if row[0] == "ERM"]
    assert all(row[4] == pytest.approx(0, abs=1e-9) for row in erm)
    assert isinstance(numbers, Figure)
    assert {row[0]: row[2] for row in numbers.rows}["ERM"] == pytest.approx(0.75)


def test_numbers_stand_beside_their_bars(judged: Make) -> None:
    numbers = uncertainty([judged(), judged(algorithm="erm")])[3]
    assert isinstance(numbers, Figure)
    bars = re.findall(r'<g id="patch_\d+">\s*<path d="M [\d.]+ [\d.]+ \nL ([\d.]+) ', numbers.svg)
    ends = {round(float(end), 2) for end in bars}
    words = re.findall(r'<text style="font-size: 7px[^>]*?(?:x="|translate\()([\d.]+)', numbers.svg)
    assert len(words) == 10  # two methods, five measures
    for word in map(float, words):
        assert any(3.9 < word - end < 4.1 for end in ends), word
