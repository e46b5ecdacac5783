"""Results that no run has measured, for tests that only read them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from metavib.models.domain_calibration import DomainCalibration, Tried
from metavib.models.feature_distance import fitted_distance
from metavib.models.results import Results, results_from

FACTS = {
    "format": 1,
    "experiment": "e",
    "dataset": "rotated-digits",
    "protocol": "p",
    "split": "s",
    "algorithm": "metavib",
    "backbone": "digits",
    "weights": "none",
    "preset": "demo",
    "seed": 0,
    "steps": 5,
    "selection": "source-validation",
    "average": "none",
    "without": [],
    "classes": ["a", "b", "c"],
    "unseen_domain": "0",
    "data": {},
}


def results_like(**changes: Any) -> Results:
    """Results with these values, as a file has them; a measure may be its mean alone."""
    for name in ("unseen", "source_validation"):
        if changes.get(name) is not None:
            changes[name] = measured(changes[name])
    return results_from(FACTS | changes, Path("made-up/results.json"))


def measured(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a file has of a measurement, where these values are all that matters."""
    whole = {
        name: {"deviation": 0.0, **one} if isinstance(one, Mapping) and name != "domains" else one
        for name, one in values.items()
    }
    return {"images": 4, "measured_by": "nobody"} | whole


def across_domains() -> DomainCalibration:
    """A calibration across domains of two classes and two features: sure of all at 0, of 70 % at .9."""
    features = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    own = Tried(100, 0.8, 0.8, 1.0, 0.0, (1.0, 0.7), (0.2, 0.05))
    return DomainCalibration(
        version=1,
        left_out={"1": own},
        drifted={},
        log_temperature=0.0,
        by_distance=0.0,
        distance=fitted_distance(features, torch.arange(40) % 2, features).record(),
        levels=(0.0, 0.9),
        set_scores={"1": tuple(place / 100 for place in range(101))},
        foreign_above=20.0,
        foreign_found=None,
        forecast_deviation=0.1,
    )
