"""Thresholds: quantiles by hand, coverage that holds on the validation images themselves."""

import json

import pytest
import torch

from metavib.algorithms import ERM, MetaVIB
from metavib.core.errors import UserError
from metavib.models.calibration import (
    QUANTILES,
    Calibration,
    answered,
    calibrate,
    calibration_from,
    check_coverage,
    quantiles,
)
from metavib.models.measuring import Embedded, shared_noise
from metavib.models.results import Unsure
from metavib.nn.backbones import BACKBONES


def calibration(values, **changes):
    return Calibration(len(values), quantiles(torch.tensor(values)), quantiles(torch.tensor(values)), None)


def test_the_threshold_of_a_per_cent_is_the_value_that_so_many_do_not_exceed():
    of_hundred_and_one = calibration([number / 100 for number in range(101)])
    for per_cent in range(1, 101):
        assert of_hundred_and_one.threshold("mean", per_cent / 100) == pytest.approx(per_cent / 100, abs=2e-6)


def test_between_two_per_cents_the_threshold_lies_between_them():
    found = calibration([number / 100 for number in range(101)])
    assert found.threshold("sampled", 0.905) == pytest.approx(0.905, abs=2e-6)
    assert found.threshold("sampled", 0.0001) == pytest.approx(0.0001, abs=2e-6)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 99, 250])
def test_at_least_the_stated_share_is_not_above_the_threshold(count):
    values = torch.rand(count, generator=torch.Generator().manual_seed(count)).tolist()
    found = calibration(values)
    for per_cent in range(1, 101):
        threshold = found.threshold("sampled", per_cent / 100)
        assert sum(value <= threshold for value in values) >= per_cent / 100 * count - 1e-9
    assert found.threshold("sampled", 1.0) >= max(values)
    thresholds = [found.threshold("sampled", share / 1000) for share in range(1, 1001)]
    assert thresholds == sorted(thresholds)


def test_a_model_that_is_always_sure_has_the_threshold_zero():
    assert calibration([0.0, 0.0, 0.0]).threshold("mean", 0.5) == 0.0


@pytest.mark.parametrize("coverage", [0.0, -0.1, 1.0001, float("nan"), float("inf")])
def test_what_is_no_share_is_refused(coverage):
    with pytest.raises(UserError, match="coverage"):
        check_coverage(coverage)


def test_a_record_comes_back_as_it_was():
    found = calibration([0.1, 0.4, 0.2])
    assert calibration_from(json.loads(json.dumps(vars(found)))) == found
    assert calibration_from(None) is None


@pytest.mark.parametrize(
    "change",
    [{"sampled": [0.0]}, {"mean": [1.0] + [0.0] * (QUANTILES - 1)}, {"sampled": None}, {"wrong": 1}],
    ids=str,
)
def test_nonsense_is_noticed(change):
    with pytest.raises((TypeError, ValueError)):
        calibration_from(vars(calibration([0.1, 0.2])) | change)


@pytest.fixture
def metavib_model():
    torch.manual_seed(0)
    model = MetaVIB(BACKBONES["digits"](), 3, MetaVIB.Config(latent_width=8))
    for buffer in (model.class_features, model.classifier_mean):
        buffer.normal_()
    return model


def embedded(model, count=300):
    features = torch.randn(count, model.backbone.feature_size)
    return Embedded(features, torch.arange(count) % 3)


@torch.no_grad()
def test_a_model_covers_its_own_validation_images_as_stated(metavib_model):
    validation = embedded(metavib_model)
    found = calibrate(metavib_model, validation)
    drawn = metavib_model.predictive(validation.features, shared_noise(metavib_model, 0, torch.device("cpu")))
    at_mean = metavib_model.predictive(validation.features, None)
    for mode, entropy in (("sampled", drawn.entropy()), ("mean", at_mean.entropy())):
        for coverage in (0.5, 0.9, 1.0):
            covered = (entropy <= found.threshold(mode, coverage)).double().mean().item()
            assert coverage <= covered <= coverage + 2 / 300
    assert found.sampled != found.mean
    assert found.images == 300


def test_the_distance_is_the_mean_one_to_the_own_class(metavib_model):
    validation = embedded(metavib_model, 6)
    by_hand = [
        (feature - metavib_model.class_features[label]).square().sum().sqrt().item()
        for feature, label in zip(validation.features, validation.labels, strict=True)
    ]
    assert calibrate(metavib_model, validation).class_distance == pytest.approx(sum(by_hand) / 6, rel=1e-5)


def test_features_that_all_lie_on_their_means_give_no_unit_to_measure_in(metavib_model):
    labels = torch.arange(3)
    assert calibrate(metavib_model, Embedded(metavib_model.class_features, labels)).class_distance is None


def test_erm_has_thresholds_and_no_distances():
    model = ERM(BACKBONES["digits"](), 3, ERM.Config())
    found = calibrate(model, embedded(model, 10))
    assert found.class_distance is None
    assert found.sampled == found.mean


def test_a_model_gone_astray_has_none(metavib_model):
    metavib_model.classifier_mean.fill_(float("nan"))
    assert calibrate(metavib_model, embedded(metavib_model, 4)) is None


def with_entropies(*, wrong):
    """A model whose logits are its features, and six images: two of them undecided, some of them wrong."""
    model = ERM(BACKBONES["digits"](), 3, ERM.Config())
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.zero_()
        model.classifier.weight[:, :3] = torch.eye(3)
    features = torch.zeros(6, model.backbone.feature_size)
    features[:4, 0] = 20.0
    return model, Embedded(features, torch.tensor([0] * (4 - wrong) + [1] * wrong + [0, 1]))


@pytest.mark.parametrize(("wrong", "accuracy"), [(0, 1.0), (1, 0.75), (4, 0.0)])
def test_only_images_that_are_not_unsure_count_as_answered(wrong, accuracy):
    model, images = with_entropies(wrong=wrong)
    found = answered(model, images, calibration([0.5] * 10))
    assert found == Unsure(coverage=0.9, answered=4 / 6, accuracy=accuracy, checked_on=10)


def test_where_nothing_is_answered_nothing_is_right():
    model, images = with_entropies(wrong=0)
    undecided = Embedded(images.features[4:], images.labels[4:])
    found = answered(model, undecided, calibration([0.0]))
    assert (found.answered, found.accuracy) == (0.0, None)


@torch.no_grad()
def test_who_is_answered_is_counted_as_a_predictor_answers_by_default(metavib_model):
    validation, unseen = embedded(metavib_model), embedded(metavib_model, 50)
    found = calibrate(metavib_model, validation)
    answer = metavib_model.predictive(unseen.features, None)
    sure = answer.entropy() <= found.threshold("steady", 0.9)
    right = answer.probabilities().argmax(dim=1) == unseen.labels
    record = answered(metavib_model, unseen, found)
    assert record.coverage == 0.9
    assert record.answered == pytest.approx(sure.double().mean().item())
    assert record.accuracy == pytest.approx(right[sure].double().mean().item())
