"""What to expect on a new domain: by hand, over domains, seeds and one run."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from made_up_results import across_domains

from metavib.models.domain_calibration import promise_coverage
from metavib.reports.expectation import expectations_of, headline, wilson
from metavib.reports.verdicts import Verdicts
from metavib.runs.records import Group

CLASSES = ("a", "b", "c")


@pytest.fixture
def run(record):
    def make(accuracy, target="0", seed=0, algorithm="metavib", unsure=None, **changes):
        unseen = {"images": 100, "accuracy": {"mean": accuracy}}
        return record(algorithm, target, seed, results={"unseen": unseen, "unsure": unsure}, **changes)

    return make


def test_each_domain_counts_once_and_the_interval_goes_from_the_hardest_to_the_easiest(run):
    runs = (run(0.5, "0", 0), run(0.7, "0", 1), run(0.9, "75", 0))
    (row,) = expectations_of(Group("d", "p", CLASSES, runs))
    assert row.accuracy.mean == pytest.approx(0.75)  # of .6 and .9
    assert (row.accuracy.low, row.accuracy.high) == (pytest.approx(0.6), 0.9)
    assert "2 held-out domains" in row.how
    assert "right about 75 images of 100 (60.0 to 90.0 %" in row.sentence
    assert "plain answer" not in row.sentence


def test_one_domain_is_said_to_be_one(run):
    (row,) = expectations_of(Group("d", "p", CLASSES, (run(0.5, seed=0), run(0.7, seed=1))))
    assert (row.accuracy.low, row.accuracy.high) == (0.5, 0.7)
    assert "others may be harder" in row.how
    (row,) = expectations_of(Group("d", "p", CLASSES, (run(0.5),)))
    assert (row.accuracy.low, row.accuracy.high) == wilson(0.5, 100)


def test_the_interval_of_chance_is_wilsons():
    low, high = wilson(0.5, 100)
    assert (round(low, 3), round(high, 3)) == (0.404, 0.596)
    low, high = wilson(1.0, 10)
    assert high == 1.0
    assert low == pytest.approx(10 / (10 + 1.96**2))
    assert wilson(0.0, 10)[0] == 0.0
    assert all(math.isfinite(end) for end in wilson(0.3, 1))


def test_answers_are_counted_by_the_record_where_no_model_was_asked(run):
    first = {"coverage": 0.9, "answered": 0.8, "accuracy": 0.9, "checked_on": 50}
    second = first | {"answered": 0.2, "accuracy": 0.5}
    none = first | {"answered": 0.0, "accuracy": None}
    runs = (run(0.9, "0", unsure=first), run(0.5, "15", unsure=second), run(0.5, "30", unsure=none))
    (row,) = expectations_of(Group("d", "p", CLASSES, runs))
    assert row.answered.mean == pytest.approx(1 / 3)
    assert row.wrong.mean == pytest.approx((8 + 10) / 100)  # of 80 answers and of 20
    assert (row.wrong.low, row.wrong.high) == (pytest.approx(0.1), 0.5)
    assert row.stated is None
    assert "source validation" in row.by


def test_a_model_that_was_asked_says_more_than_its_record(judged):
    one = judged(results={"unseen": {"images": 4, "accuracy": {"mean": 0.75}}})
    unsure = torch.tensor([False, False, False, True])
    one = replace(one, verdicts=Verdicts(one.unseen.labels, one.unseen.probabilities, unsure, None))
    (row,) = expectations_of(Group("d", "p", CLASSES, (one.run,)), [one])
    assert row.answered.mean == 0.75
    assert row.wrong.mean == pytest.approx(1 / 3)
    assert "33 % of those answers are wrong" in row.sentence


def test_what_a_calibration_stated_stands_beside_what_came(judged):
    record = across_domains()
    one = judged(results={"unseen": {"images": 4, "accuracy": {"mean": 0.75}}})
    one = replace(
        one,
        verdicts=Verdicts(
            one.unseen.labels,
            one.unseen.probabilities,
            torch.zeros(4, dtype=torch.bool),
            torch.zeros(4, dtype=torch.bool),
            promise_coverage(record, 0.9),
            record,
        ),
    )
    (row,) = expectations_of(Group("d", "p", CLASSES, (one.run,)), [one])
    assert row.stated.accuracy.mean == 0.8
    assert row.stated.answered.mean == 1.0
    assert row.stated.wrong.mean == 0.2
    assert "left out" in row.by


def test_the_first_sentence_is_about_metavib_and_never_about_a_row_that_peeks(run):
    peeking = run(0.9, settings={"selection": "oracle"})
    rows = expectations_of(Group("d", "p", CLASSES, (run(0.6, algorithm="erm"), peeking)))
    assert headline(rows).title == "ERM"
    assert headline([]) is None
    rows = expectations_of(Group("d", "p", CLASSES, (run(0.6, algorithm="erm"), run(0.5))))
    assert headline(rows).title == "MetaVIB"


def test_a_model_of_all_domains_expects_what_others_found(record):
    expected = {
        "runs": 2,
        "domains": {
            name: {"accuracy": value, "class_averaged_accuracy": value, "runs": 1, "images": 5}
            for name, value in (("0", 0.5), ("75", 0.7))
        },
        "accuracy": {"mean": 0.6, "deviation": 0.1},
        "class_averaged_accuracy": {"mean": 0.6, "deviation": 0.1},
    }
    final = record(target=None, results={"unseen": None, "unseen_domain": None, "expected": expected})
    (row,) = expectations_of(Group("d", "p", CLASSES, (final,)))
    assert row.all_domains
    assert row.accuracy.mean == pytest.approx(0.6)
    alone = record(target=None, results={"unseen": None, "unseen_domain": None})
    (row,) = expectations_of(Group("d", "p", CLASSES, (alone,)))
    assert row.accuracy is None
    assert "nothing was measured" in row.sentence
