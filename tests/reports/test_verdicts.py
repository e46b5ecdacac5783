"""What a user hears of an unseen image: one kind each, by the model's own rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from made_up_results import across_domains

from metavib.models.calibration import COVERAGE, Calibration
from metavib.models.directory import ModelDescription, TakenImages
from metavib.models.domain_calibration import promise_coverage
from metavib.models.look import NO_MAPS, Seen, fitted_look
from metavib.nn.texture import texture_of
from metavib.reports.verdicts import KINDS, MOST, Verdicts, place_of, shown_of, verdicts_of

LABELS = torch.tensor([0, 1, 1, 0])
PROBABILITIES = torch.tensor([[0.99, 0.01], [0.98, 0.02], [0.45, 0.55], [0.5, 0.5]])


def description(**changes: object) -> ModelDescription:
    given = ModelDescription(
        "erm",
        {},
        "digits",
        False,
        ("a", "b"),
        ("1", "2"),
        "0",
        TakenImages(28, 1, (0.0,), (1.0,)),
        0,
        "e",
        "s",
    )
    return replace(given, **changes)


def test_every_image_is_of_one_kind():
    verdicts = Verdicts(
        LABELS,
        PROBABILITIES,
        torch.tensor([False, False, True, True]),
        torch.tensor([False, False, False, True]),
    )
    kinds = [verdicts.of_kind(kind) for kind in KINDS]
    assert [one.nonzero().flatten().tolist() for one in kinds] == [[0], [1], [2], [3]]
    assert torch.stack(kinds).sum(dim=0).tolist() == [1, 1, 1, 1]


def test_a_model_that_keeps_nothing_is_sure_of_all_and_says_that_it_cannot_tell():
    verdicts = verdicts_of(description(), LABELS, torch.zeros(4, 2), PROBABILITIES)
    assert verdicts.unsure is None
    assert verdicts.answered is None
    assert verdicts.of_kind("unsure") is None
    assert verdicts.of_kind("foreign") is None
    assert verdicts.of_kind("right").tolist() == [True, False, True, True]  # of equals, the first


def test_without_calibration_across_domains_the_entropy_of_source_validation_decides():
    kept = Calibration(9, (0.3,) * 101, (0.3,) * 101, None)
    verdicts = verdicts_of(description(calibration=kept), LABELS, torch.zeros(4, 2), PROBABILITIES)
    assert verdicts.unsure.tolist() == [False, False, True, True]
    assert verdicts.foreign is None


def test_a_calibration_across_domains_decides_where_there_is_one():
    record = across_domains()
    given = description(
        calibration=Calibration(9, (9.0,) * 101, (9.0,) * 101, None), domain_calibration=record
    )
    features = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [1e4, 1e4]])
    verdicts = verdicts_of(given, LABELS, features, PROBABILITIES)
    promise = promise_coverage(record, COVERAGE)
    assert verdicts.promise == promise
    assert verdicts.unsure.tolist() == (PROBABILITIES.max(dim=1).values < promise.threshold).tolist()
    assert verdicts.foreign.tolist() == [False, False, False, True]


def test_an_image_of_another_look_is_foreign_as_predict_says_however_near_its_features_are():
    draw = torch.Generator().manual_seed(0)
    usual = torch.rand(30, 1, 28, 28, generator=draw)
    look = fitted_look(NO_MAPS, {name: Seen(texture_of(usual[n::3]), None) for n, name in enumerate("abc")})
    given = description(domain_calibration=replace(across_domains(), version=4, look=look))
    stripes = (torch.arange(28) % 4 < 2).float().expand(1, 1, 28, 28)
    images = torch.cat([usual[:2], stripes, usual[2:3]])
    places = []

    def passed(place):
        places.append(place)
        for some in images.split(3):
            yield some, Seen(texture_of(some), None)

    near = torch.zeros(4, 2)
    assert not verdicts_of(given, LABELS, near, PROBABILITIES).foreign.any()
    verdicts = verdicts_of(given, LABELS, near, PROBABILITIES, passed)
    assert places == [NO_MAPS]
    assert verdicts.foreign.tolist() == [False, False, True, False]
    assert len(verdicts.unsure) == len(verdicts.probabilities) == 4


def test_images_are_chosen_by_a_hash_and_never_by_how_sure_an_answer_is():
    count = 50
    labels, sure = torch.zeros(count, dtype=torch.int64), torch.full((count, 2), 0.5)
    sure[:, 0] = torch.linspace(0.6, 1.0, count)
    sure[:, 1] = 1 - sure[:, 0]
    verdicts = Verdicts(labels, sure, torch.zeros(count, dtype=torch.bool), None)
    shown = shown_of(verdicts, "photo")
    assert shown == sorted(range(count), key=lambda number: place_of("photo", number))[:MOST]
    turned = replace(verdicts, probabilities=sure.flip(0))
    assert shown_of(turned, "photo") == shown
    assert shown_of(verdicts, "sketch") != shown


@pytest.mark.parametrize("count", [0, 1])
def test_few_images_are_no_trouble(count):
    empty = torch.zeros(count, dtype=torch.int64)
    verdicts = Verdicts(empty, torch.zeros(count, 2), None, None)
    assert shown_of(verdicts, "x") == list(range(count))
