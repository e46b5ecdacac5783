from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from metavib.algorithms import ALGORITHMS, create
from metavib.core.errors import UserError
from metavib.data.arrays import sources_of
from metavib.models import left_out
from metavib.models.calibrating import fitted
from metavib.models.directory import preprocessing_of
from metavib.models.domain_calibration import promise_error
from metavib.models.left_out import (
    LEAST_LOG,
    Answers,
    Fold,
    answered_by_folds,
    answered_by_heads,
    source_gain,
)
from metavib.models.source_features import SourceFeatures, finite
from metavib.nn.backbones import DigitNetwork
from tests.models.test_calibrating import features
from tests.models.test_measuring_measures import built


def test_a_share_of_the_wrong_answers_is_put_right() -> None:
    logs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]]).log()
    given = Answers.of(logs, torch.tensor([0, 0, 1]), torch.ones(3))
    assert given.accuracy == pytest.approx(1 / 3)
    corrected = given.corrected(0.25)
    assert corrected.accuracy == pytest.approx(0.5)  # a quarter of two is half an image more
    assert corrected.images == 3
    assert given.corrected(0.0) is given


def test_a_class_that_is_absent_has_a_finite_logarithm() -> None:
    given = Answers.of(torch.tensor([[0.0, -torch.inf]]), torch.tensor([1]), torch.ones(1))
    assert given.log_probabilities.isfinite().all()


def test_a_drift_that_breaks_the_model_is_no_other_domain() -> None:
    given = features(3)
    draw = torch.Generator().manual_seed(2)
    broken = {name: torch.randn(own[0].shape, generator=draw).roll(1, 0) for name, own in given.held.items()}
    given.drifted["broken"] = {name: 50 * values for name, values in broken.items()}
    found = answered_by_heads(built("erm"), given)
    assert set(found.drifted) == {"noisy"}
    assert any("left aside: broken" in note for note in found.notes)
    assert set(fitted(built("erm"), given).drifted) == {"noisy"}


def test_one_source_more_is_judged_by_one_source_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    given = features(4)
    monkeypatch.setattr(left_out, "_head_error", lambda *got: 1 / len(got[2]))  # 1/3 of three, 1/2 of two
    gain = source_gain(dict.fromkeys(given.train, (built("erm"), given)))
    assert gain == pytest.approx(1 - 3 / 4)  # as 1/K: with four it would be 1/4
    monkeypatch.setattr(left_out, "_head_error", lambda *got: 0.2)
    assert source_gain(dict.fromkeys(given.train, (built("erm"), given))) == 0.0
    monkeypatch.setattr(left_out, "_head_error", lambda *got: math.exp(-5.0 * len(got[2])))
    assert source_gain(dict.fromkeys(given.train, (built("erm"), given))) == left_out.MOST_GAIN


def test_two_sources_say_nothing_of_a_third() -> None:
    given = features(2)
    assert source_gain(dict.fromkeys(given.train, (built("erm"), given))) == 0.0


def test_labels_that_contradict_leave_nothing_to_promise() -> None:
    given = features(3)
    mixed = {name: (images, labels.roll(1)) for name, (images, labels) in given.held.items()}
    record = fitted(built("erm"), SourceFeatures(given.train, mixed, {}, given.foreign, ()))
    assert all(one.accuracy < 0.1 for one in record.left_out.values())
    promise = promise_error(record, 0.05)
    assert not promise.kept
    assert promise.threshold > 1
    assert record.log_temperature > 0  # no answer may be sure


def test_features_that_are_not_finite_are_refused() -> None:
    with pytest.raises(UserError, match="lower learning_rate"):
        finite(torch.tensor([[1.0, torch.nan]]))


def test_answers_are_corrected_where_the_network_saw_no_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    given = features(3)
    untouched = SourceFeatures(given.train, given.held, {}, given.foreign, (), untouched=True)
    monkeypatch.setattr(left_out, "source_gain", lambda seen: 0.5)
    found = answered_by_heads(built("erm"), untouched)
    assert any("50 % of their wrong answers" in note for note in found.notes)
    assert not found.drifted
    seen = SourceFeatures(given.train, given.held, {}, given.foreign, ())
    assert not answered_by_heads(built("erm"), seen).notes


def test_a_fold_that_lacks_a_class_answers_the_others() -> None:
    draw = np.random.default_rng(0)
    domains = np.repeat([0, 1, 2], 24)
    labels = np.where(domains == 0, np.arange(72) % 4, np.arange(72) % 3)
    pixels = draw.integers(0, 256, (72, 1, 28, 28), dtype=np.uint8)
    network = DigitNetwork()
    sources = sources_of(pixels, labels, domains, 4, preprocessing_of(network), torch.device("cpu"))
    few = create("erm", network, 3, 2, ALGORITHMS["erm"].Config())
    folds = {
        "0": Fold(few, ("a", "b", "c")),
        "1": Fold(built("erm"), tuple("abcd")),
        "2": Fold(built("erm"), tuple("abcd")),
    }
    found = answered_by_folds(folds, sources, tuple("abcd"))
    assert found.folds == "whole"
    assert found.clean["0"].images == 18
    assert (found.clean["0"].log_probabilities[:, 3] == LEAST_LOG).all()
    assert found.clean["1"].images == 24
    assert any("6 image(s) of '0' are of classes that no other source has" in note for note in found.notes)
