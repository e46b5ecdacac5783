"""Bayesian search: what it proposes follows from the journal alone, however often it was killed."""

import sys

import pytest

from metavib.core.errors import UserError
from metavib.runs.sweep.search import Study, open_journal
from metavib.runs.sweep.space import Interval, Listed

pytest.importorskip("optuna", reason="optuna is not installed")

SPACE = {"x": Interval(0.0, 1.0, log=False, whole=False), "n": Interval(1, 64, log=True, whole=True)}
SPACE["kind"] = Listed(("a", "b"))


def score(setting):
    return 1 - (setting["x"] - 0.3) ** 2 - (setting["kind"] == "b")


def searched(path, trials=24, kills=()):
    """All proposals of a search that is killed before (round, proposals made, scores told) and opened again."""
    found = []

    def opened():
        return Study("s", SPACE, trials, 4, 0, open_journal(path))

    study = opened()
    for number in range(study.rounds):
        proposals = study.proposals(number)
        if (number, "proposed") in kills:
            study = opened()
            assert study.proposals(number) == proposals
        if (number, "half told") in kills:
            first = study.study.get_trials()[4 * number]
            study.study.tell(first.number, score(proposals[0]))
            study = opened()
        study.learn(number, [score(own) for own in proposals])
        if (number, "told") in kills:
            study = opened()
        found += proposals
    return found


def test_a_search_that_goes_on_proposes_what_it_would_have_proposed(tmp_path):
    expected = searched(tmp_path / "whole")
    kills = {(0, "proposed"), (1, "told"), (3, "half told"), (4, "proposed"), (4, "half told"), (5, "told")}
    assert searched(tmp_path / "killed", kills=kills) == expected
    assert len({own["x"] for own in expected}) == 24
    assert all(1 <= own["n"] <= 64 and isinstance(own["n"], int) for own in expected)


def test_a_half_asked_round_is_asked_to_its_end(tmp_path):
    expected = searched(tmp_path / "whole", trials=8)
    study = Study("s", SPACE, 2, 4, 0, open_journal(tmp_path / "half"))
    study.proposals(0)  # two of four
    assert searched(tmp_path / "half", trials=8) == expected


def test_it_learns_from_what_did_well(tmp_path):
    found = searched(tmp_path / "journal", trials=40)
    scores = [score(own) for own in found]
    assert sum(scores[20:]) / 20 > sum(scores[:10]) / 10  # the first ten are random


def test_a_trial_without_a_score_is_no_obstacle(tmp_path):
    study = Study("s", SPACE, 8, 4, 0, open_journal(tmp_path / "journal"))
    study.proposals(0)
    study.learn(0, [None, 0.5, None, 0.7])
    study.learn(0, [0.1, 0.1, 0.1, 0.1])  # told already: nothing changes
    assert [trial.value for trial in study.study.get_trials()] == [None, 0.5, None, 0.7]
    assert len(study.proposals(1)) == 4


def test_a_last_line_that_a_kill_cut_off_is_forgotten(tmp_path):
    path = tmp_path / "journal"
    study = Study("s", SPACE, 4, 2, 0, open_journal(path))
    expected = study.proposals(0)
    with path.open("a") as journal:
        journal.write('{"op_code": 5, "work')
    assert Study("s", SPACE, 4, 2, 0, open_journal(path)).proposals(0) == expected


def test_without_optuna_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"pip install 'metavib\[sweep\]'"):
        open_journal(tmp_path / "journal")
