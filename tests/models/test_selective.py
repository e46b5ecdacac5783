from __future__ import annotations

import pytest
import torch
from sklearn.metrics import roc_auc_score

from metavib.models.metrics import Scores, scored
from metavib.models.selective import (
    area_under_generalised_risk,
    area_under_risk,
    coverage_at_risk,
    risk_at_coverage,
    risk_curve,
)


def scores_of(confidence: list[float], right: list[bool]) -> Scores:
    """Two classes: the label is 0 where the answer, which is always 0, is right."""
    sure = torch.tensor(confidence, dtype=torch.float64)
    return scored(torch.stack([sure, 1 - sure], dim=1), (~torch.tensor(right)).long())


def random_scores(seed: int, *, ties: bool = False) -> Scores:
    draw = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(200, 5, generator=draw, dtype=torch.float64)
    labels = torch.where(
        torch.rand(200, generator=draw) < 0.7, logits.argmax(1), torch.randint(5, (200,), generator=draw)
    )
    probabilities = logits.softmax(1)
    if ties:
        probabilities = (probabilities * 10).round().clamp_min(0.1)
        probabilities = probabilities / probabilities.sum(1, keepdim=True)
    return scored(probabilities, labels)


def test_by_hand() -> None:
    scores = scores_of([0.9, 0.8, 0.7, 0.6], [True, False, True, False])
    curve = risk_curve(scores.confidence, scores.predicted == scores.labels)
    assert curve.risk.tolist() == pytest.approx([0, 1 / 2, 1 / 3, 1 / 2])
    assert curve.generalised_risk.tolist() == pytest.approx([0, 1 / 4, 1 / 4, 1 / 2])
    assert area_under_risk(scores).item() == pytest.approx((1 / 2 + 1 / 3 + 1 / 2) / 4)
    assert area_under_generalised_risk(scores).item() == pytest.approx((1 / 8 + 1 / 4 + 3 / 8) / 4)
    assert risk_at_coverage(scores, 0.5).item() == 1 / 2
    assert risk_at_coverage(scores, 0.75).item() == pytest.approx(1 / 3)
    assert coverage_at_risk(scores, 0.05).item() == 0.25
    assert coverage_at_risk(scores, 0.34).item() == 0.75


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_generalised_area_is_that_of_scikit_learns_auroc(seed: int, ties: bool) -> None:
    scores = random_scores(seed, ties=ties)
    right = scores.predicted == scores.labels
    accuracy = right.double().mean().item()
    auroc = roc_auc_score(right.numpy(), scores.confidence.numpy())
    expected = (1 - auroc) * accuracy * (1 - accuracy) + (1 - accuracy) ** 2 / 2
    assert area_under_generalised_risk(scores).item() == pytest.approx(expected, abs=1e-12)


def test_the_order_of_samples_is_nothing() -> None:
    scores = random_scores(0, ties=True)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(1))
    *columns, classes = scores
    mixed = Scores._make([*(values[order] for values in columns), classes])
    for measure in (area_under_risk, area_under_generalised_risk, risk_at_coverage, coverage_at_risk):
        assert measure(scores).item() == pytest.approx(measure(mixed).item(), abs=1e-12)


def test_limits() -> None:
    right, wrong = scores_of([0.9, 0.8], [True, True]), scores_of([0.9, 0.8], [False, False])
    assert (area_under_risk(right), area_under_risk(wrong)) == (0, 1)
    assert (area_under_generalised_risk(right), area_under_generalised_risk(wrong)) == (0, 0.5)
    assert (coverage_at_risk(right), coverage_at_risk(wrong)) == (1, 0)


def test_equal_confidence_is_answered_together() -> None:
    scores = scores_of([0.9, 0.9, 0.6], [True, False, True])
    assert (
        coverage_at_risk(scores, 0.05).item() == 0
    )  # the right one cannot be answered without the wrong one
    assert coverage_at_risk(scores, 0.5).item() == 1


def test_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        risk_curve(torch.empty(0), torch.empty(0, dtype=torch.bool))
