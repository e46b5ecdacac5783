"""How well a score tells foreign images from a model's own kind. A foreign image should have the higher score."""

from __future__ import annotations

import torch
from torch import Tensor

from metavib.core.shapes import Float


def area_under_roc(own: Float[Tensor, "own"], foreign: Float[Tensor, "foreign"]) -> float:
    """AUROC: how probable a foreign image has a higher score than one of the own kind; ties are half."""
    _check(own, foreign)
    ordered = own.double().sort().values
    below = torch.searchsorted(ordered, foreign.double(), side="left")
    not_above = torch.searchsorted(ordered, foreign.double(), side="right")
    return ((below + not_above).double().mean() / (2 * len(own))).item()


def false_alarms(own: Float[Tensor, "own"], foreign: Float[Tensor, "foreign"], found: float = 0.95) -> float:
    """FPR at 95 %: the share of the own kind that is called foreign where 95 % of the foreign ones are."""
    _check(own, foreign)
    ordered = foreign.double().sort(descending=True).values
    needed = max(1, -int(-(found * len(ordered) - 1e-9) // 1))  # the least number that is this share
    return (own.double() >= ordered[needed - 1]).double().mean().item()


def _check(own: Tensor, foreign: Tensor) -> None:
    if len(own) == 0 or len(foreign) == 0:
        raise ValueError("a detection is measured on images of both kinds")
    if not (own.isfinite().all() and foreign.isfinite().all()):
        raise ValueError("scores must be finite")
