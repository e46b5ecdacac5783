"""DomainBed's three selection rules: their names, their judges, and what they look at."""

import pytest

from metavib.errors import UserError
from metavib.sweep.rules import RULES, rule_named

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
    assert rule.score({"source_validation": {"accuracy": {"mean": 0.75}}}) == 0.75
    with pytest.raises(UserError, match="no source validation images to choose by"):
        rule.score({"source_validation": None})


def test_folds_leave_the_target_out_altogether(cell):
    judges = RULES["leave-one-domain-out"].judges(cell("photo"), DOMAINS)
    assert [judge.experiment.target for judge in judges] == ["art", "cartoon", "sketch"]
    assert {judge.experiment.without for judge in judges} == {("photo",)}


def test_the_oracle_scores_by_the_target(cell):
    assert RULES["oracle"].judges(cell(), DOMAINS) == [cell()]
    assert RULES["oracle"].score({"unseen": {"accuracy": {"mean": 0.5}}}) == 0.5
