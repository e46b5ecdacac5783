from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import binary_calibration_error

from metavib.models.calibration_errors import classwise_calibration_error, smooth_calibration_error
from metavib.models.metrics import scored


def answers(count: int, classes: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    probabilities = (2 * torch.randn(count, classes, generator=draw, dtype=torch.float64)).softmax(1)
    return probabilities, torch.randint(classes, (count,), generator=draw)


def test_class_by_class_as_torchmetrics() -> None:
    probabilities, labels = answers(300, 4, 0)
    expected = [
        binary_calibration_error(
            probabilities[:, c].contiguous(), (labels == c).long(), n_bins=15, norm="l1"
        ).item()
        for c in range(4)
    ]
    measured = classwise_calibration_error(probabilities, labels).item()
    assert measured == pytest.approx(sum(expected) / 4, abs=1e-6)


@pytest.mark.parametrize("confidence", [0.6, 0.9, 0.995])
def test_one_confidence_is_off_by_its_distance_from_the_accuracy(confidence: float) -> None:
    probabilities = torch.tensor([[confidence, 1 - confidence]], dtype=torch.float64).expand(100, 2)
    labels = (torch.arange(100) >= 40).long()  # 40 % are right
    error = smooth_calibration_error(scored(probabilities, labels)).item()
    assert error == pytest.approx(confidence - 0.4, abs=2e-3)


def test_the_width_is_where_the_integral_equals_it() -> None:
    """The definition, with the Gaussian and its mirror images written out."""
    probabilities, labels = answers(200, 3, 1)
    scores = scored(probabilities, labels)
    width = smooth_calibration_error(scores).item()
    at = np.linspace(0, 1, 2001)
    smoothed = np.zeros_like(at)
    confidence = scores.confidence.numpy()
    residuals = (scores.predicted == scores.labels).numpy() - confidence
    for mirror in (-4, -2, 0, 2, 4):
        for sign in (1, -1):
            apart = at[:, None] - mirror - sign * confidence
            smoothed += (np.exp(-0.5 * (apart / width) ** 2) / (width * math.sqrt(2 * math.pi))) @ residuals
    integral = np.trapezoid(np.abs(smoothed) / len(confidence), at)
    assert integral == pytest.approx(width, abs=1e-3)


def test_an_honest_model_has_hardly_any() -> None:
    draw = torch.Generator().manual_seed(2)
    probabilities = (2 * torch.randn(20_000, 3, generator=draw, dtype=torch.float64)).softmax(1)
    labels = torch.multinomial(probabilities, 1, generator=draw)[:, 0]
    assert smooth_calibration_error(scored(probabilities, labels)).item() < 0.02
    assert classwise_calibration_error(probabilities, labels).item() < 0.02
