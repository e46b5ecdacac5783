from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve

from metavib.models.detection import area_under_roc, false_alarms


@pytest.mark.parametrize("decimals", [1, 6])
def test_as_scikit_learn(decimals: int) -> None:
    draw = torch.Generator().manual_seed(decimals)
    own = torch.randn(150, generator=draw).round(decimals=decimals)
    foreign = (torch.randn(80, generator=draw) + 1).round(decimals=decimals)
    truth = np.repeat([0, 1], [150, 80])
    scores = torch.cat([own, foreign]).numpy()
    assert area_under_roc(own, foreign) == pytest.approx(roc_auc_score(truth, scores))
    false, true, _ = roc_curve(truth, scores, drop_intermediate=False)
    assert false_alarms(own, foreign) == pytest.approx(false[true >= 0.95 - 1e-12][0])


def test_limits() -> None:
    low, high = torch.tensor([0.0, 1.0]), torch.tensor([2.0, 3.0])
    assert (area_under_roc(low, high), false_alarms(low, high)) == (1.0, 0.0)
    assert (area_under_roc(high, low), false_alarms(high, low)) == (0.0, 1.0)
    assert area_under_roc(low, low) == 0.5


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="both kinds"):
        area_under_roc(torch.empty(0), torch.ones(2))
    with pytest.raises(ValueError, match="finite"):
        false_alarms(torch.tensor([float("nan")]), torch.ones(2))
