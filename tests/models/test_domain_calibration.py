from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
import torch

from metavib.core.errors import UserError
from metavib.models.domain_calibration import (
    FARTHEST,
    Calibrator,
    DomainCalibration,
    Tried,
    domain_calibration_from,
    promise_coverage,
    promise_error,
    promised_sets,
    tempered,
)
from metavib.models.feature_distance import fitted_distance
from metavib.models.look import Seen, fitted_look
from metavib.nn.watching import Place

LEVELS = (0.2, 0.5, 0.8, 0.95)


def tried(answered: tuple[float, ...], wrong: tuple[float, ...], images: int = 100) -> Tried:
    return Tried(images, 1 - wrong[0], 0.7, 1.2, 0.0, answered, wrong)


def made_record(**changes: Any) -> DomainCalibration:
    features = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    rising = tuple(place / 100 for place in range(101))
    record = DomainCalibration(
        version=1,
        left_out={
            "a": tried((1.0, 0.8, 0.5, 0.2), (0.2, 0.1, 0.02, 0.0)),
            "b": tried((1.0, 0.6, 0.3, 0.1), (0.3, 0.15, 0.03, 0.001)),
        },
        drifted={"inverted": tried((1.0, 0.4, 0.1, 0.01), (0.9, 0.3, 0.01, 0.01))},
        log_temperature=0.0,
        by_distance=0.5,
        distance=fitted_distance(features, torch.arange(20) % 2, features).record(),
        levels=LEVELS,
        set_scores={"a": rising, "b": tuple(value**2 for value in rising)},
        foreign_above=3.0,
        foreign_found=0.9,
        forecast_deviation=0.1,
    )
    return replace(record, **changes)


def with_look() -> DomainCalibration:
    draw = torch.Generator().manual_seed(0)
    seen = {
        name: Seen(torch.randn(20, 3, generator=draw), torch.randn(20, 4, generator=draw)) for name in "abc"
    }
    return made_record(version=4, look=fitted_look(Place("passed", 1), seen))


def test_an_error_is_kept_in_every_domain_that_can_say() -> None:
    record = made_record()
    # At .8 domain b and the drift have 10 % wrong; at .95 all have less, and the drift has one answer only.
    promise = promise_error(record, 0.05)
    assert promise.threshold == 0.95
    assert promise.kept
    assert promise.error is not None
    assert promise.error.high == pytest.approx(0.01)
    assert (promise.answered.low, promise.answered.high) == (0.01, 0.2)
    assert promise_error(record, 0.2).threshold == 0.8  # half of it is held back
    assert "10.3 % (1.0 to 20.0) answered" in promise.in_words()


def test_what_cannot_be_had_is_said() -> None:
    record = made_record(drifted={"inverted": tried((1.0, 0.9, 0.8, 0.7), (0.9, 0.8, 0.7, 0.6))})
    promise = promise_error(record, 0.05)
    assert not promise.kept
    assert promise.threshold > 1
    assert "cannot be had" in promise.in_words()


def test_one_domain_that_fools_the_model_does_not_silence_it() -> None:
    fooled = tried((1.0, 0.8, 0.5, 0.2), (0.9, 0.3, 0.1, 0.04))  # 20 % wrong where it is surest
    less_sure = (0.2, 0.5, 0.8, 0.94)
    right = tried((1.0, 0.8, 0.5, 0.2), (0.0,) * 4)
    record = made_record(left_out=dict.fromkeys("abcd", right), drifted={"inverted": fooled})
    promise = promise_error(replace(record, levels=(0.2, 0.5, 0.8, 0.96)), 0.05)
    assert promise.kept
    assert promise.threshold == 0.96
    assert "4.0 % (0.0 to 20.0) of the answers wrong" in promise.in_words()  # the worst of them is told
    assert not promise_error(replace(record, levels=less_sure), 0.05).kept  # .94 is not sure enough of itself
    assert not promise_error(replace(record, drifted=dict.fromkeys("xyz", fooled)), 0.05).kept
    few = replace(record, left_out=dict.fromkeys("abc", right))  # of four none is left aside
    assert not promise_error(few, 0.05).kept


def test_few_answers_say_nothing_of_rare_errors() -> None:
    none_wrong = tried((0.5,) * 4, (0.0,) * 4)
    record = made_record(left_out={"a": none_wrong, "b": none_wrong}, drifted={})  # 100 answers
    assert promise_error(record, 0.01).kept
    promise = promise_error(record, 0.001)
    assert not promise.kept
    assert "at most 0.1% of the answers wrong" in promise.in_words()


def test_coverage_is_that_of_the_harder_half() -> None:
    record = made_record()
    assert promise_coverage(record, 0.5).threshold == 0.5  # .8, .6 and .4
    assert promise_coverage(record, 0.6).threshold == 0.2
    assert promise_coverage(record, 1.0).threshold == 0.2
    assert promise_coverage(replace(record, left_out={"a": record.left_out["b"]}), 0.5).threshold == 0.2


def test_a_coverage_that_sources_miss_is_not_promised() -> None:
    record = made_record(drifted={})
    equal = replace(record, left_out=dict.fromkeys("ab", tried((1.0, 0.8, 0.5, 0.2), (0.0,) * 4)))
    assert promise_coverage(equal, 0.7).kept  # .8 was answered of both
    unequal = promise_coverage(record, 0.6)
    assert unequal.threshold == 0.5  # the harder half is b's .6, and a was answered by 20 points more
    assert not unequal.kept
    assert "It cannot be promised: left-out sources were answered too unequally" in unequal.in_words()


def test_sets_are_those_of_the_most_cautious_source() -> None:
    assert promised_sets(made_record(), 0.9) == 0.9
    assert promised_sets(made_record(), 0.895) == 0.9


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, float("nan")])
def test_no_share_is_refused(share: float) -> None:
    for ask in (promise_error, promise_coverage, promised_sets):
        with pytest.raises(UserError, match="must be above 0 and at most 1"):
            ask(made_record(), share)


def test_probabilities_keep_their_order_and_soften_with_distance() -> None:
    given = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64)
    near, far = (tempered(given.log(), torch.tensor([d]), 0.0, 1.0) for d in (0.5, 8.0))
    torch.testing.assert_close(near, given)
    torch.testing.assert_close(far, (given.log() / 8).softmax(1))
    calibrator = Calibrator(made_record(), torch.device("cpu"))
    several = calibrator.probabilities(torch.tensor([[[1.0, 0.0]], [[0.5, 0.5]]]), torch.tensor([1e9]))
    assert several.isfinite().all()
    assert several.shape == (2, 1, 2)


def test_an_image_that_shows_nothing_is_as_far_as_can_be() -> None:
    images = torch.stack([torch.zeros(1, 4, 4), torch.rand(1, 4, 4)])
    features = torch.zeros(2, 3)
    knows = Calibrator(made_record(least_contrast=0.05), torch.device("cpu"))
    blank, other = knows.distances(features, images).tolist()
    assert blank == FARTHEST
    assert other == knows.distances(features).tolist()[1]
    older = Calibrator(made_record(), torch.device("cpu"))  # knows no contrast
    assert older.distances(features, images)[0] < FARTHEST


def test_what_looks_like_no_source_is_foreign_however_near_its_features_are() -> None:
    calibrator = Calibrator(with_look(), torch.device("cpu"))
    distances = torch.tensor([0.5, 0.5, 3.5])
    maps = torch.tensor([[0.0] * 4, [50.0] * 4, [0.0] * 4])
    looks = calibrator.looks(Seen(torch.zeros(3, 3), maps), distances)
    assert calibrator.foreign(distances, looks).tolist() == [False, True, True]
    older = Calibrator(made_record(), torch.device("cpu"))  # knows no looks
    assert older.place is None
    assert older.foreign(distances, older.looks(None, distances)).tolist() == [False, False, True]


def test_a_record_is_read_again_and_nonsense_is_not() -> None:
    plain = asdict(made_record())
    assert domain_calibration_from(plain, 2) == made_record()
    assert domain_calibration_from(None, 2) is None
    first = {name: value for name, value in plain.items() if name not in ("folds", "least_contrast")}
    assert domain_calibration_from(first, 2) == made_record()  # as version 1 wrote it
    second = {name: value for name, value in plain.items() if name != "look"} | {"version": 2}
    assert domain_calibration_from(second, 2) == made_record(version=2)
    assert domain_calibration_from(asdict(with_look()), 2) == with_look()
    for change in (
        {"version": 5},
        {"look": asdict(with_look())["look"] | {"above": 0.0}},
        {"look": asdict(with_look())["look"] | {"module": 3}},
        {"levels": [0.5, 0.2, 0.8, 0.9]},
        {"left_out": {}},
        {"set_scores": {"a": [0.5]}},
        {"levels": [0.5]},
        {"foreign_above": "far"},
        {"log_temperature": float("nan")},
        {"folds": "some"},
        {"least_contrast": -1.0},
    ):
        with pytest.raises(ValueError, match=r"."):
            domain_calibration_from(plain | change, 2)
    with pytest.raises(ValueError, match="more classes"):
        domain_calibration_from(plain, 1)
