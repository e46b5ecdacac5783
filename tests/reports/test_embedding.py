from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from metavib.reports.embedding import embedding, flattened, invariance, one_of_each
from metavib.reports.figure import Figure
from metavib.reports.judged import DomainSample

Make = Callable[..., Any]
DOMAINS, LABELS = torch.arange(3).repeat_interleave(60), torch.arange(180) % 3


def sample(told: torch.Tensor) -> DomainSample:
    """Features that tell of these numbers, and of nothing else."""
    noise = torch.randn(180, 6, generator=torch.Generator().manual_seed(1))
    return DomainSample(10 * torch.eye(6)[told] + noise, LABELS, DOMAINS, ("1", "2", "0"))


def test_features_that_tell_the_domain_are_found_out(judged: Make) -> None:
    found = invariance(judged(sampled=sample(DOMAINS)))
    assert found.probe == 1
    assert found.by_domain > 0.5
    assert abs(found.by_class) < 0.1


def test_features_that_tell_the_class_alone_are_invariant(judged: Make) -> None:
    found = invariance(judged(sampled=sample(LABELS)))
    assert found.probe == pytest.approx(found.chance, abs=0.15)
    assert found.by_class > 0.5
    assert abs(found.by_domain) < 0.1


def test_the_papers_three_methods_are_shown_side_by_side_for_one_target(judged: Make) -> None:
    runs = [judged(algorithm=name, target=t) for t in ("0", "75") for name in ("metavib", "baseline", "erm")]
    shown = one_of_each(runs)
    assert [one.run.title for one in shown] == ["ERM", "MetaVIB"]
    assert {one.run.experiment.target for one in shown} == {"0"}
    assert [one.run.title for one in one_of_each([runs[1]])] == ["Baseline"]


def test_the_same_features_lie_where_they_lay() -> None:
    features = torch.randn(40, 5, generator=torch.Generator().manual_seed(0)).numpy()
    first = flattened(features, 3)
    assert first.shape == (40, 2)
    assert np.array_equal(first, flattened(features, 3))


def test_the_figure_has_a_point_for_every_image_and_the_numbers_in_words(judged: Make) -> None:
    (figure,) = embedding([judged(), judged(algorithm="erm")])
    assert isinstance(figure, Figure)
    assert len(figure.rows) == 2 * 90
    assert {row[1] for row in figure.rows} == {"0", "1", "2"}
    assert "ERM: probe " in figure.alternative
    assert "0 (unseen)" in figure.svg
