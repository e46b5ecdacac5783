"""DomainBed's three selection rules: their names, their judges, and what they look at."""

from statistics import fmean

import pytest
from made_up_results import results_like

from metavib.core.errors import UserError
from metavib.runs.cross_validation import Question, best_of, judged_by
from metavib.runs.grid import CellResult
from metavib.runs.sweep.rules import RULES, rule_named

DOMAINS = ("art", "cartoon", "photo", "sketch")


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("source-validation", "source-validation"),
        ("training-domain validation", "source-validation"),
        ("Training-domain  validation set", "source-validation"),
        ("leave_one_domain_out", "leave-one-domain-out"),
        ("leave-one-domain-out cross-validation", "leave-one-domain-out"),
        ("oracle", "oracle"),
        ("test-domain validation set (oracle)", "oracle"),
    ],
)
def test_our_names_and_those_of_domainbed_are_known(name, ours):
    assert rule_named(name) is RULES[ours]


def test_only_the_oracle_peeks_and_every_title_of_domainbed_is_a_name():
    assert [rule.name for rule in RULES.values() if rule.peeks] == ["oracle"]
    for rule in RULES.values():
        assert rule_named(rule.title) is rule


def test_a_run_that_judges_itself_by_source_validation_keeps_its_target_closed(cell):
    rule = RULES["source-validation"]
    assert rule.blind
    assert rule.judges(cell(), DOMAINS) == [cell()]
    assert rule.score(results_like(source_validation={"accuracy": {"mean": 0.75}})) == 0.75
    with pytest.raises(UserError, match="no source validation images to choose by"):
        rule.score(results_like())


def test_folds_leave_the_target_out_altogether(cell):
    judges = RULES["leave-one-domain-out"].judges(cell("photo"), DOMAINS)
    assert [judge.experiment.target for judge in judges] == ["art", "cartoon", "sketch"]
    assert {judge.experiment.without for judge in judges} == {("photo",)}


def test_the_oracle_scores_by_the_target(cell):
    assert RULES["oracle"].judges(cell(), DOMAINS) == [cell()]
    assert RULES["oracle"].score(results_like(unseen={"accuracy": {"mean": 0.5}})) == 0.5


def test_a_sweep_and_the_other_commands_have_the_same_folds_and_the_same_scores(cell):
    rule = RULES["leave-one-domain-out"]
    candidates = (cell(learning_rate=0.1), cell(learning_rate=0.2))
    asked = Question(candidates, DOMAINS)
    assert [fold for one in candidates for fold in rule.judges(one, DOMAINS)] == asked.all_folds
    runs = [
        CellResult(fold, results_like(unseen={"accuracy": {"mean": mean}}), None)
        for fold, mean in zip(asked.folds(candidates[0]), (0.1, 0.2, 0.3), strict=True)
    ]
    assert judged_by(runs, rule.score) == judged_by(runs) == (fmean((0.1, 0.2, 0.3)), None)
    runs[1] = CellResult(runs[1].cell, None, "broke")
    assert judged_by(runs, rule.score) == (None, "broke")
    assert [best_of(scores) for scores in ([0.1, 0.3, 0.3], [None, 0.0], [None], [])] == [1, 1, None, None]
