from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metavib.reports.figure import Figure, Missing
from metavib.reports.training import training

LOG = (
    {"step": 1, "split": "s", "classification": 2.0, "bottleneck": 0.5, "learning_rate": 0.1},
    {
        "step": 2,
        "split": "s",
        "classification": 1.0,
        "bottleneck": 0.4,
        "learning_rate": 0.1,
        "validation_accuracy": 0.9,
    },
)


def test_every_logged_quantity_is_drawn(record: Callable[..., Any]) -> None:
    erm = ({"step": 1, "classification": 3.0, "learning_rate": 0.2},)
    whole, each = training([record(log=LOG), record(algorithm="erm", log=erm)])
    assert isinstance(whole, Figure)
    assert isinstance(each, Figure)
    assert ("MetaVIB", "0", 0, 2, "bottleneck", 0.4) in whole.rows
    assert ("MetaVIB", "0", 0, 2, "validation_accuracy", 0.9) in whole.rows
    assert ("ERM", "0", 0, 1, "classification", 3.0) in whole.rows
    assert {row[4] for row in whole.rows} == {
        "classification",
        "bottleneck",
        "learning_rate",
        "validation_accuracy",
    }
    assert "ERM, 0, seed 0" in each.svg


def test_runs_without_a_log_leave_a_line(record: Callable[..., Any]) -> None:
    (missing,) = training([record(log=())])
    assert isinstance(missing, Missing)
