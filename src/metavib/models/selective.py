"""Measures of a model that may decline to answer: how wrong are its answers if it gives the surest ones alone?

All follow from the confidence of each sample and from whether its answer is right. Samples of the same confidence
cannot be told apart: each of them counts as the mean of all of them, so that no order of the samples matters.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from metavib.core.shapes import Bool, Float
from metavib.models.metrics import Scores

COVERAGE = 0.8  # of `risk_at_coverage`
RISK = 0.05  # of `coverage_at_risk`


class RiskCurve(NamedTuple):
    """The risk when only the surest samples are answered: one point for each number of them."""

    coverage: Float[Tensor, "samples"]  # the share of samples that is answered: 1/N, 2/N, ... 1
    risk: Float[Tensor, "samples"]  # the share of the answers that is wrong
    generalised_risk: Float[Tensor, "samples"]  # the share of all samples that is answered and wrong


def risk_curve(confidence: Float[Tensor, "samples"], right: Bool[Tensor, "samples"]) -> RiskCurve:
    """Risk against coverage, the surest first (El-Yaniv and Wiener, JMLR 2010)."""
    if len(confidence) == 0:
        raise ValueError("no samples: a measure of nothing is not defined")
    confidence, wrong = confidence.cpu().double(), (~right.cpu()).double()
    _, group = torch.unique(-confidence, return_inverse=True)  # sorted: the surest has number 0
    errors = torch.bincount(group, weights=wrong) / torch.bincount(group)
    wrong = errors[group.sort().values].cumsum(0)
    answered = torch.arange(1, len(wrong) + 1, dtype=torch.float64)
    return RiskCurve(answered / len(wrong), wrong / answered, wrong / len(wrong))


def area_under_risk(scores: Scores) -> Float[Tensor, ""]:
    """AURC: the mean of the risk over all coverages (Geifman et al., ICLR 2019)."""
    return _curve(scores).risk.mean()


def area_under_generalised_risk(scores: Scores) -> Float[Tensor, ""]:
    """AUGRC: the integral of the generalised risk over the coverage (Traub et al., NeurIPS 2024), at most 1/2.

    Half of it is the risk that a wrong answer is taken for a surer one than a right answer:
    AUGRC = (1 - AUROC) a (1 - a) + (1 - a)^2 / 2, with the accuracy a, and AUROC of confidence for right answers.
    """
    risk = _curve(scores).generalised_risk
    return (risk.sum() - risk[-1] / 2) / len(risk)  # trapezoids, from a risk of 0 where nothing is answered


def risk_at_coverage(scores: Scores, coverage: float = COVERAGE) -> Float[Tensor, ""]:
    """The share of wrong answers among the surest samples, as many as make up the coverage."""
    risk = _curve(scores).risk
    return risk[max(math.ceil(coverage * len(risk) - 1e-9), 1) - 1]


def coverage_at_risk(scores: Scores, risk: float = RISK) -> Float[Tensor, ""]:
    """The largest share of samples that can be answered with no more than this share of answers wrong; 0 for none.

    The threshold is the best in hindsight, an oracle's: nobody can choose it without labels. Samples of the same
    confidence are answered together or not at all.
    """
    return oracle_coverage(scores.confidence, scores.predicted == scores.labels, risk)


def oracle_coverage(
    confidence: Float[Tensor, "samples"], right: Bool[Tensor, "samples"], risk: float
) -> Float[Tensor, ""]:
    """`coverage_at_risk` for any measure of confidence, with `right` saying which answers are right."""
    curve = risk_curve(confidence, right)
    ordered = confidence.cpu().double().sort(descending=True).values
    ends = torch.cat([ordered[1:] < ordered[:-1], torch.ones(1, dtype=torch.bool)])
    allowed = curve.coverage[ends & (curve.risk <= risk + 1e-12)]
    return allowed[-1] if len(allowed) else torch.zeros((), dtype=torch.float64)


def _curve(scores: Scores) -> RiskCurve:
    return risk_curve(scores.confidence, scores.predicted == scores.labels)
