"""The ranking: order, means, standard errors, and how it is told."""

import pytest
from made_up_results import results_like

from metavib.runs.grid import CellResult
from metavib.runs.sweep import ranking
from metavib.runs.sweep.plan import plan_from
from metavib.runs.sweep.search import FixedSearch
from metavib.runs.sweep.tuning import Contest, Measured, Trial


@pytest.fixture
def plan(folder):
    values = {"dataset": str(folder), "targets": ["art", "sketch"], "algorithms": ["erm", "vib"], "seeds": 3}
    return plan_from(values | {"backbone": "digits", "weights": "none", "space": {"warmup": [0, 1]}}, None)


@pytest.fixture
def measured(plan, tmp_path):
    """The chosen one of two trials, with these accuracies on the target, one for each seed."""

    def make(algorithm, target, *accuracies):
        def trial(setting, score):
            cells = tuple(plan.cell(algorithm, target, seed, setting, tmp_path) for seed in plan.seeds)
            return Trial(setting, cells, score, None if score else "broke down")

        trials = [trial({"warmup": 0}, None), trial({"warmup": 1}, 0.875)]
        runs = []
        for cell, accuracy in zip(trials[1].cells, accuracies, strict=True):
            unseen = {"accuracy": {"mean": accuracy or 0.0}, "ece": {"mean": 0.1}}
            results = None if accuracy is None else results_like(unseen=unseen)
            runs.append(CellResult(cell, results, None if accuracy else "why"))
        contest = Contest(algorithm, target, plan.seeds, FixedSearch([]), trials)
        return Measured(contest, tuple(runs))

    return make


def test_the_mean_and_its_standard_error_by_hand():
    assert ranking.mean_and_error([]) == (None, None)
    assert ranking.mean_and_error([3.0]) == (3.0, None)
    mean, error = ranking.mean_and_error([1.0, 2.0, 3.0])
    assert (mean, error) == (2.0, pytest.approx(1 / 3**0.5))


def test_the_best_mean_over_targets_stands_first(plan, measured, tmp_path):
    record = ranking.ranking_of(
        plan,
        [
            measured("erm", "art", 0.1, 0.2, 0.3),
            measured("erm", "sketch", 0.3, 0.4, 0.5),
            measured("vib", "art", 0.5, 0.5, 0.5),
            measured("vib", "sketch", 0.7, 0.5, 0.6),
        ],
        tmp_path,
    )
    first, second = record.ranking
    assert (first.algorithm, second.algorithm) == ("vib", "erm")
    assert first.mean == pytest.approx(55)
    assert second.standard_error == pytest.approx(10 / 3**0.5)  # the seeds have 20, 30 and 40
    assert second.targets["art"].mean == pytest.approx(20)
    (choice,) = first.targets["art"].chosen
    assert (choice.settings, choice.score, choice.seeds) == ({"warmup": 1}, 0.875, (0, 1, 2))
    assert [trial.failure for trial in choice.trials] == ["broke down", None]
    runs = first.targets["sketch"].runs
    assert [run.unseen["accuracy"] for run in runs] == [0.7, 0.5, 0.6]
    assert all(run.run.startswith("cells/") for run in runs)
    table = ranking.as_table(record).splitlines()
    assert table[2].split() == [
        "1.",
        "vib",
        "50.00",
        "+-",
        "0.00",
        "60.00",
        "+-",
        "5.77",
        "55.00",
        "+-",
        "2.89",
    ]
    assert (
        "vib, 'art' unseen: warmup=1 (87.50 % by source-validation, best of 2, 1 of them broke down)" in table
    )
    page = ranking.as_markdown(record)
    assert "| 1. vib | 50.00 +- 0.00 | 60.00 +- 5.77 | 55.00 +- 2.89 |" in page
    assert "over 3 seeds; settings by source-validation (DomainBed's training-domain validation set)" in page
    assert "PEEKS" not in page


def test_what_is_missing_is_a_dash_and_stands_last(plan, measured, tmp_path):
    lost = measured("erm", "art", 0.9, 0.9, 0.9)
    lost.contest.trials[1].score = None
    lost.contest.trials[1].failure = "broke down"
    record = ranking.ranking_of(
        plan,
        [
            Measured(lost.contest, ()),
            measured("erm", "sketch", 0.9, 0.9, 0.9),
            measured("vib", "art", 0.1, None, 0.3),
            measured("vib", "sketch", 0.1, 0.2, 0.3),
        ],
        tmp_path,
    )
    first, second = record.ranking
    assert (first.algorithm, second.algorithm) == ("vib", "erm")
    assert first.mean == pytest.approx(20)  # of the two seeds that have both targets
    assert first.targets["art"].failures == ("why",)
    assert second.mean is None
    assert second.targets["art"].failures == ("no setting could be trained: broke down",)
    _, rows = ranking.body(record)
    assert rows[1][1] == rows[1][3] == "-"
    assert "erm, 'art' unseen: no setting could be trained" in ranking.chosen_in_words(record)


def test_what_peeks_is_marked_wherever_it_stands(plan, measured, tmp_path):
    import dataclasses

    from metavib.runs.sweep.rules import rule_named

    peeking = dataclasses.replace(plan, rule=rule_named("oracle"))
    record = ranking.ranking_of(peeking, [measured("erm", "art", 0.1, 0.2, 0.3)], tmp_path)
    assert record.select.peeks is True
    assert "PEEKS at the unseen domain: no fair comparison" in ranking.as_markdown(record)
