"""Settings chosen by the source domains alone: the folds, the choice, and that the target plays no part."""

import json
from dataclasses import replace

import pytest
import torch
from made_up_results import results_like

from metavib.core.errors import UserError
from metavib.runs import cross_validation
from metavib.runs.cells import stack_key
from metavib.runs.cross_validation import Question, choose, question
from metavib.runs.grid import CellResult
from metavib.runs.one_run import ExecutionContext

CPU = ExecutionContext(torch.device("cpu"))
SOURCES = ("art", "cartoon", "photo")


@pytest.fixture
def asked(cell):
    """A question with a candidate for each of these rates; "sketch" is the target."""

    def ask(*rates, **options):
        return question([cell(learning_rate=rate, **options) for rate in rates], None)

    return ask


@pytest.fixture
def judged(monkeypatch):
    """Says the accuracies of a rate's folds (None: it broke down); gives the grids that were asked for."""
    accuracies, grids = {}, []

    def run_grid(cells, context, *, batch):
        grids.append((list(cells), batch))
        return [done(cell) for cell in cells]

    def done(cell):
        experiment = cell.experiment
        found = accuracies[experiment.training.learning_rate][SOURCES.index(experiment.target)]
        if found is None:
            return CellResult(cell, None, f"{experiment.target} broke")
        return CellResult(cell, results_like(unseen={"accuracy": {"mean": found}}), None)

    def say(rate, *by_domain):
        accuracies[rate] = by_domain
        return grids

    monkeypatch.setattr(cross_validation, "run_grid", run_grid)
    return say


# --- the folds --------------------------------------------------------------------------------------------


def test_a_candidate_is_judged_on_each_source_without_the_target(asked):
    one = asked(0.1, 0.2)
    for candidate in one.candidates:
        folds = one.folds(candidate)
        assert [fold.experiment.target for fold in folds] == list(SOURCES)
        for fold in folds:
            own = candidate.experiment
            assert fold.experiment == replace(own, target=fold.experiment.target, without=("sketch",))
            assert fold.out == candidate.out.parent / "folds" / fold.experiment.identity()
    assert one.all_folds == [fold for candidate in one.candidates for fold in one.folds(candidate)]
    assert len({fold.out for fold in one.all_folds}) == 6
    assert len({stack_key(fold.experiment) for fold in one.all_folds}) == 1


def test_no_fold_has_the_target_or_what_is_left_out_as_source_or_target(cell, make_folder, tmp_path):
    folder = make_folder(tmp_path / "many", domains="a b c d e")
    for target in "abcde":
        own = replace(cell(target).experiment, dataset=str(folder), without=("d",) if target != "d" else ())
        candidates = [replace(cell(target), experiment=own)]
        one = question(candidates, None)
        kept_away = {target, *own.without}
        folds = one.folds(candidates[0])
        assert {fold.experiment.target for fold in folds} == set("abcde") - kept_away
        for fold in folds:
            assert set(fold.experiment.without) == kept_away
            assert list(fold.experiment.without) == sorted(kept_away)


def test_equal_candidates_are_asked_about_once(asked):
    assert len(asked(0.1, 0.1, 0.2).candidates) == 2
    assert asked(0.1, 0.1).all_folds == []


@pytest.mark.parametrize("without", [("art",), ("art", "photo")], ids=str)
def test_at_least_three_sources_are_needed(cell, without):
    candidate = cell()
    candidate = replace(candidate, experiment=replace(candidate.experiment, without=without))
    with pytest.raises(UserError, match="at least 3 source domains"):
        question([candidate], None)


def test_an_unknown_target_or_domain_to_leave_out_is_named_before_anything_is_trained(cell):
    with pytest.raises(UserError, match="unknown target domain 'sketsch'; did you mean 'sketch'"):
        question([cell("sketsch")], None)
    candidate = cell()
    candidate = replace(candidate, experiment=replace(candidate.experiment, without=("foto",)))
    with pytest.raises(UserError, match="unknown domain to leave out 'foto'; did you mean 'photo'"):
        question([candidate], None)


# --- the choice -------------------------------------------------------------------------------------------


def test_the_best_mean_over_the_sources_wins_and_all_are_on_record(asked, judged):
    one = asked(0.1, 0.2, 0.3)
    judged(0.1, 0.9, 0.9, 0.3)  # the best on two of them
    judged(0.2, 0.7, 0.8, 0.9)
    grids = judged(0.3, 0.1, 0.1, 1.0)
    (choice,) = choose([one], CPU, batch=5)
    assert grids == [(one.all_folds, 5)]
    assert choice.chosen == one.candidates[1]
    assert choice.record.rule == "leave-one-domain-out"
    assert choice.record.chosen == one.candidates[1].experiment.identity()
    records = choice.record.candidates
    assert [own.mean for own in records] == pytest.approx([0.7, 0.8, 0.4])
    assert [own.settings for own in records] == [{"training.learning_rate": rate} for rate in (0.1, 0.2, 0.3)]
    assert records[0].accuracy == {"art": 0.9, "cartoon": 0.9, "photo": 0.3}
    assert [own.experiment for own in records] == [own.experiment.identity() for own in one.candidates]


def test_of_equals_the_first_is_chosen(asked, judged):
    judged(0.1, 0.5, 0.5, 0.5)
    judged(0.2, 0.75, 0.5, 0.75)
    judged(0.3, 0.75, 0.75, 0.5)
    one = asked(0.1, 0.2, 0.3)
    (choice,) = choose([one], CPU, batch=None)
    assert choice.chosen == one.candidates[1]


def test_a_candidate_with_a_broken_fold_is_out(asked, judged):
    judged(0.1, 1.0, None, 1.0)
    judged(0.2, 0.1, 0.2, 0.3)
    one = asked(0.1, 0.2)
    (choice,) = choose([one], CPU, batch=None)
    assert choice.chosen == one.candidates[1]
    broken = choice.record.candidates[0]
    assert broken.mean is None
    assert broken.accuracy == {"art": 1.0, "photo": 1.0}


def test_where_no_candidate_is_left_the_reason_is_told_and_other_questions_are_answered(asked, judged):
    judged(0.1, 1.0, None, 1.0)
    judged(0.2, 0.1, 0.2, None)
    judged(0.3, 0.1, 0.2, 0.3)
    lost, found = choose([asked(0.1, 0.2), asked(0.2, 0.3)], CPU, batch=None)
    assert lost == "no candidate could be trained on all folds: cartoon broke"
    assert found.chosen.experiment.training.learning_rate == 0.3


def test_a_single_candidate_needs_no_folds(asked, judged):
    grids = judged(0.1)
    one = asked(0.1)
    (choice,) = choose([one], CPU, batch=None)
    assert [cells for cells, _ in grids] == [[]]
    assert choice.chosen == one.candidates[0]
    assert choice.record.candidates == ()


def test_a_fold_of_two_questions_is_trained_once(asked, judged):
    judged(0.1, 0.1, 0.1, 0.1)
    judged(0.2, 0.2, 0.2, 0.2)
    grids = judged(0.3, 0.3, 0.3, 0.3)
    choices = choose([asked(0.1, 0.2), asked(0.2, 0.3)], CPU, batch=None)
    assert len(grids[0][0]) == 3 * 3
    assert [one.chosen.experiment.training.learning_rate for one in choices] == [0.2, 0.3]


def test_a_choice_is_written_beside_the_run(asked, judged):
    judged(0.1, 0.1, 0.1, 0.1)
    judged(0.2, 0.2, 0.2, 0.2)
    (choice,) = choose([asked(0.1, 0.2)], CPU, batch=None)
    choice.chosen.out.mkdir(parents=True)
    choice.record.write(choice.chosen.out)
    written = json.loads((choice.chosen.out / "choice.json").read_text())
    assert list(written) == ["rule", "peeks", "candidates", "chosen"]
    assert written["chosen"] == choice.record.chosen
    assert [list(one) for one in written["candidates"]] == [
        ["experiment", "settings", "accuracy", "mean"]
    ] * 2


def test_a_question_is_about_the_domains_of_the_dataset(cell):
    assert question([cell()], None) == Question((cell(),), ("art", "cartoon", "photo", "sketch"))
