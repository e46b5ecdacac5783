from __future__ import annotations

import dataclasses

import pytest
import torch
from sklearn.covariance import EmpiricalCovariance

from metavib.models.feature_distance import FeatureDistance, PackedArray, contrast_of, fitted_distance


def samples(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(300) % 3
    mix = torch.randn(6, 6, generator=draw, dtype=torch.float64)
    centres = 5 * torch.randn(3, 6, generator=draw, dtype=torch.float64)
    return centres[labels] + torch.randn(300, 6, generator=draw, dtype=torch.float64) @ mix, labels


def test_with_all_directions_it_is_scikit_learns_mahalanobis() -> None:
    features, labels = samples()
    distance = fitted_distance(features, labels, features)
    means = torch.stack([features[labels == c].mean(0) for c in range(3)])
    centred = (features - means[labels]).numpy()
    covariance = EmpiricalCovariance(assume_centered=True).fit(centred)
    squared = torch.stack(
        [torch.from_numpy(covariance.mahalanobis((features - mean).numpy())) for mean in means], 1
    )
    expected = (squared.min(1).values * 297 / 300).sqrt()
    torch.testing.assert_close(distance(features) * distance.unit, expected)
    assert distance(features).median().item() == pytest.approx(1)


def test_the_rest_has_one_variance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metavib.models.feature_distance.DIRECTIONS", 2)
    features, labels = samples(1)
    distance = fitted_distance(features, labels, features)
    directions, rest = distance.directions, distance.rest
    inverse = torch.eye(6, dtype=torch.float64) / rest
    inverse += directions.mT @ torch.diag(1 / distance.variances - 1 / rest) @ directions
    apart = features[:, None] - distance.means
    expected = torch.einsum("ncd,de,nce->nc", apart, inverse, apart).min(1).values.sqrt() / distance.unit
    torch.testing.assert_close(distance(features), expected)


def test_it_is_kept_in_a_record() -> None:
    features, labels = samples()
    distance = fitted_distance(features.float(), labels, features.float())
    again = FeatureDistance.from_record(distance.record())
    torch.testing.assert_close(again(features.float()), distance(features.float()))


def test_nonsense_is_refused() -> None:
    features, labels = samples()
    record = fitted_distance(features, labels, features).record()
    for change in (
        {"rest": 0.0},
        {"means": PackedArray((2, 2), record.means.float32)},
        {"means": PackedArray.of(torch.full((3, 6), float("nan")))},
        {"variances": PackedArray.of(torch.ones(4))},
    ):
        with pytest.raises(ValueError, match=r"distance|array"):
            FeatureDistance.from_record(dataclasses.replace(record, **change))


def test_constant_features_and_one_image_have_a_distance() -> None:
    distance = fitted_distance(torch.ones(4, 5), torch.tensor([0, 0, 1, 1]), torch.empty(0, 5))
    assert distance(torch.zeros(1, 5)).isfinite().all()
    assert (
        fitted_distance(torch.ones(1, 5), torch.tensor([0]), torch.ones(1, 5))(torch.ones(2, 5))
        .isfinite()
        .all()
    )


def test_contrast_is_that_of_the_most_varied_channel() -> None:
    images = torch.zeros(3, 2, 4, 4)
    images[0] = 0.7  # blank
    images[1, 1, :2] = 1.0  # half of a channel
    images[2, 0] = 1.0  # a channel each of its own, and blank
    torch.testing.assert_close(contrast_of(images), torch.tensor([0.0, 0.5, 0.0]))
