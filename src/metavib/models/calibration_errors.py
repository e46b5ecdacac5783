"""Further measures of calibration: without bins, and class by class."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from metavib.core.shapes import Float, Int
from metavib.models.metrics import Scores

GRID = 512  # places between 0 and 1 where residuals are smoothed
HALVINGS = 20  # of the interval that holds the bandwidth


def smooth_calibration_error(scores: Scores) -> Float[Tensor, ""]:
    """SmoothECE (Blasiok and Nakkiran, ICLR 2024): without bins, and without a width to choose.

    With residuals r_i = [right] - confidence_i smoothed by a Gaussian of width s that is reflected at 0 and 1,

        smECE_s = int_0^1 | 1/N sum_i r_i K_s(t, confidence_i) | dt,

    and the measure is the s at which smECE_s = s: it falls as s grows.
    """
    confidence = scores.confidence.cpu().double().clamp(0, 1)
    residuals = (scores.predicted == scores.labels).cpu().double() - confidence
    place = confidence * (GRID - 1)
    below = place.floor().long().clamp(0, GRID - 2)
    share = place - below
    mass = torch.bincount(below, residuals * (1 - share), GRID)
    mass = mass + torch.bincount(below + 1, residuals * share, GRID)
    waves = _waves() @ (mass / len(confidence))
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        width = (low + high) / 2
        if _smoothed(waves, width) < width:
            high = width
        else:
            low = width
    return torch.tensor((low + high) / 2, dtype=torch.float64)


def _smoothed(waves: Float[Tensor, "waves"], width: float) -> float:
    """int_0^1 |smoothed residual|, from the residual's share of each wave cos(pi k t).

    A Gaussian, reflected at 0 and 1, damps each wave by itself.
    """
    numbers = torch.arange(GRID, dtype=torch.float64)
    weights = (-0.5 * (math.pi * width * numbers).square()).exp() * torch.where(numbers == 0, 1.0, 2.0)
    density = _waves().mT @ (weights * waves)
    return ((density[1:].abs() + density[:-1].abs()) / 2).mean().item()


@functools.cache
def _waves() -> Float[Tensor, "waves places"]:
    """cos(pi k t) for the places t."""
    places = torch.linspace(0, 1, GRID, dtype=torch.float64)
    return (math.pi * torch.arange(GRID, dtype=torch.float64)[:, None] * places).cos()


def classwise_calibration_error(
    probabilities: Float[Tensor, "samples classes"], labels: Int[Tensor, "samples"], bins: int = 15
) -> Float[Tensor, ""]:
    """1/C sum_c sum_b |B_cb|/N | share of class c in B_cb - mean p_c in B_cb | (Kull et al., NeurIPS 2019).

    It needs the probabilities of all classes, which `Scores` does not keep.
    """
    truth = labels[:, None] == torch.arange(probabilities.shape[1], device=labels.device)
    probabilities = probabilities.double()
    surplus = probabilities - truth.double()
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=probabilities.device)[1:-1]
    within = torch.bucketize(probabilities, edges)
    sums = torch.stack([(surplus * (within == number)).sum(dim=0) for number in range(bins)])
    return sums.abs().sum(dim=0).mean() / len(labels)
