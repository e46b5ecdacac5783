"""The sweep itself: who is judged by whom, what is chosen, and that only what is chosen meets its target."""

import json
import statistics

import pytest
import torch
from made_up_results import results_like

from metavib.data.opening import open_target
from metavib.runs import one_run as runner
from metavib.runs.grid import CellResult, run_grid
from metavib.runs.one_run import ExecutionContext
from metavib.runs.sweep.plan import plan_from
from metavib.runs.sweep.tuning import run_sweep

SMALL = {
    "backbone": "digits",
    "weights": "none",
    "settings": {"steps": 2, "images_per_domain": 8, "repeats": 2, "validations": 1},
}


@pytest.fixture
def plan(folder):
    def make(**values):
        given = {"dataset": str(folder), "targets": ["sketch"], "algorithms": ["erm"], **SMALL}
        return plan_from(given | values, None)

    return make


@pytest.fixture
def opened(monkeypatch):
    """The targets that were opened, in order."""
    seen = []

    def open_and_tell(dataset, split, *others, **named):
        seen.append(split.target)
        return open_target(dataset, split, *others, **named)

    monkeypatch.setattr(runner, "open_target", open_and_tell)
    return seen


@pytest.fixture
def train():
    """Trains in this process; remembers the stages."""

    def call(who, blind, stage):
        call.stages.append((stage, blind, len(who)))
        context = ExecutionContext(torch.device("cpu"), blind=blind, say=call.said.append)
        return {one.cell.out: one for one in run_grid(list(who), context, batch=call.batch)}

    call.stages, call.said, call.batch = [], [], None
    return call


@pytest.fixture
def judged():
    """Trains nothing: says the score of a rate, or that it broke down (None), for each seed."""

    def made(scores):
        def call(who, blind, stage):
            call.stages.append((stage, blind, [cell.experiment.training.learning_rate for cell in who]))
            return {cell.out: done(cell) for cell in who}

        def done(cell):
            found = scores[cell.experiment.training.learning_rate]
            found = found[cell.experiment.seed] if isinstance(found, list) else found
            if found is None:
                return CellResult(cell, None, "broke down")
            cell.out.mkdir(parents=True, exist_ok=True)
            measured = {"accuracy": {"mean": found}}
            return CellResult(cell, results_like(unseen=measured, source_validation=measured), None)

        call.stages = []
        return call

    return made


# --- with real runs -----------------------------------------------------------------------------------------


def test_by_source_validation_the_target_is_opened_for_what_was_chosen_alone(plan, opened, train, tmp_path):
    own = plan(space={"learning_rate": [1e-3, 1e-2, 2e-2]}, seeds=2)
    (measured,) = run_sweep(own, tmp_path, train)
    assert train.stages == [("choosing", True, 6), ("measuring what was chosen", False, 2)]
    assert opened == ["sketch"] * 2
    finished = {path.parent for path in tmp_path.glob("cells/*/results.json")}
    assert finished == {run.cell.out for run in measured.runs}
    judged = [json.loads(path.read_text()) for path in tmp_path.glob("cells/*/validation.json")]
    assert len(judged) == 6
    assert not any("unseen" in one for one in judged)
    for trial in measured.contest.trials:
        scores = [
            json.loads((cell.out / "validation.json").read_text())["source_validation"]["accuracy"]["mean"]
            for cell in trial.cells
        ]
        assert trial.score == pytest.approx(statistics.mean(scores))
    best = max(measured.contest.trials, key=lambda trial: trial.score)
    assert measured.contest.chosen is best
    for run in measured.runs:
        choice = json.loads((run.cell.out / "choice.json").read_text())
        assert choice["chosen"] == run.cell.experiment.identity()
        assert (choice["rule"], choice["peeks"]) == ("source-validation", False)
        assert [own["mean"] for own in choice["candidates"]] == [t.score for t in measured.contest.trials]


def test_a_run_that_was_chosen_has_what_it_would_have_had_alone(plan, train, tmp_path):
    (measured,) = run_sweep(plan(space={"learning_rate": [1e-3, 1e-2]}), tmp_path / "sweep", train)
    (run,) = measured.runs
    alone = runner.run_experiment(
        run.cell.experiment, tmp_path / "alone", ExecutionContext(torch.device("cpu"))
    )
    assert run.results == alone
    for name in ("model/model.safetensors", "metrics.jsonl", "results.json"):
        assert (run.cell.out / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


def test_runs_may_be_stacked_and_the_chosen_one_is_measured_by_itself(plan, opened, train, tmp_path):
    train.batch = 4
    (measured,) = run_sweep(plan(space={"learning_rate": [1e-3, 1e-2]}, seeds=2), tmp_path, train)
    assert "4 runs are trained as one program." in train.said
    assert opened == ["sketch"] * 2
    assert len(list(tmp_path.glob("cells/*/validation.json"))) == 4
    assert {path.parent for path in tmp_path.glob("cells/*/results.json")} == {
        r.cell.out for r in measured.runs
    }
    assert not (tmp_path / "cells" / ".stacks").exists()
    for run in measured.runs:
        judged = json.loads((run.cell.out / "validation.json").read_text())["source_validation"]
        for name in ("accuracy", "nll"):  # the model that was judged is the one that is measured, to rounding
            assert run.results.source_validation.mean(name) == pytest.approx(judged[name]["mean"], rel=1e-5)


def test_by_leave_one_domain_out_the_target_plays_no_part_before_the_end(plan, opened, train, tmp_path):
    own = plan(space={"learning_rate": [1e-3, 1e-2]}, select="leave-one-domain-out cross-validation")
    run_sweep(own, tmp_path, train)
    assert train.stages == [("choosing", False, 6), ("measuring what was chosen", False, 1)]
    assert sorted(opened[:6]) == ["art", "art", "cartoon", "cartoon", "photo", "photo"]
    assert opened[6:] == ["sketch"]
    for path in tmp_path.glob("cells/folds/*/experiment.json"):
        assert json.loads(path.read_text())["experiment"]["without"] == ["sketch"]


def test_the_oracle_opens_the_target_of_every_trial_and_says_so(plan, opened, train, tmp_path):
    (measured,) = run_sweep(plan(space={"learning_rate": [1e-3, 1e-2]}, select="oracle"), tmp_path, train)
    assert opened == ["sketch"] * 2
    (run,) = measured.runs
    assert measured.contest.chosen.score == run.results.unseen.mean("accuracy")
    assert json.loads((run.cell.out / "choice.json").read_text())["peeks"] is True


# --- with made-up scores ------------------------------------------------------------------------------------


def test_the_best_mean_over_seeds_wins_and_of_equals_the_first(plan, judged, tmp_path):
    train = judged({1e-3: [0.9, 0.1], 1e-2: [0.6, 0.8], 2e-2: [0.7, 0.7]})
    (measured,) = run_sweep(plan(space={"learning_rate": [1e-3, 1e-2, 2e-2]}, seeds=2), tmp_path, train)
    assert measured.contest.chosen.setting == {"learning_rate": 1e-2}
    assert [run.cell.experiment.seed for run in measured.runs] == [0, 1]


def test_where_each_seed_chooses_for_itself_their_choices_may_differ(plan, judged, tmp_path):
    train = judged({1e-3: [0.9, 0.1], 1e-2: [0.6, 0.8]})
    own = plan(space={"learning_rate": [1e-3, 1e-2]}, seeds=2, choose_for="seed")
    first, second = run_sweep(own, tmp_path, train)
    assert first.contest.chosen.setting == {"learning_rate": 1e-3}
    assert second.contest.chosen.setting == {"learning_rate": 1e-2}
    assert [run.cell.experiment.seed for run in (*first.runs, *second.runs)] == [0, 1]


def test_a_trial_that_broke_down_is_out_and_where_all_did_that_is_told(plan, judged, tmp_path):
    space = {"learning_rate": [1e-3, 1e-2]}
    (measured,) = run_sweep(plan(space=space, seeds=2), tmp_path, judged({1e-3: [1.0, None], 1e-2: 0.1}))
    assert measured.contest.chosen.setting == {"learning_rate": 1e-2}
    assert measured.failures == []
    (measured,) = run_sweep(plan(space=space), tmp_path / "none", judged({1e-3: None, 1e-2: None}))
    assert measured.runs == ()
    assert measured.failures == ["no setting could be trained: broke down"]


def test_an_algorithm_without_the_setting_has_nothing_to_choose_and_is_measured(plan, judged, tmp_path):
    rate = plan().experiment("erm", "sketch", 0, {}).training.learning_rate
    metavib_rate = plan().experiment("metavib", "sketch", 0, {}).training.learning_rate
    train = judged({rate: 0.5, metavib_rate: 0.5})
    own = plan(algorithms=["erm", "metavib"], space={"beta": [0.1, 0.2, 0.1]})
    erm, metavib = run_sweep(own, tmp_path, train)
    assert [(stage, len(rates)) for stage, _, rates in train.stages] == [
        ("choosing", 2),
        ("measuring what was chosen", 2),
    ]
    assert erm.contest.chosen.score is None
    assert metavib.contest.chosen.setting == {"beta": 0.1}


def test_random_trials_are_the_same_for_every_target(plan, judged, tmp_path):
    rates = {}

    class Any(dict):
        def __missing__(self, rate):
            return rates.setdefault(rate, 0.5)

    own = plan(
        targets=["art", "sketch"],
        space={"learning_rate": {"low": 1e-4, "high": 1e-2, "scale": "log"}},
        search="random",
        trials=5,
    )
    art, sketch = run_sweep(own, tmp_path, judged(Any()))
    assert [t.setting for t in art.contest.trials] == [t.setting for t in sketch.contest.trials]
    assert len({t.setting["learning_rate"] for t in art.contest.trials}) == 5


def test_a_bayesian_search_goes_round_by_round_and_goes_on_from_its_journal(plan, judged, tmp_path):
    pytest.importorskip("optuna", reason="optuna is not installed")

    class Near(dict):
        def __missing__(self, rate):
            return 1 - abs(rate - 5e-3) * 50

    own = plan(space={"learning_rate": {"low": 1e-4, "high": 1e-2}}, search="bayesian", trials=7, together=3)
    whole = judged(Near())
    (expected,) = run_sweep(own, tmp_path / "whole", whole)
    assert [(stage, len(rates)) for stage, _, rates in whole.stages] == [
        ("choosing, round 1 of 3", 3),
        ("choosing, round 2 of 3", 3),
        ("choosing, round 3 of 3", 1),
        ("measuring what was chosen", 1),
    ]
    calls = []

    def killed(who, blind, stage):
        calls.append(stage)
        if len(calls) in (2, 4):
            raise KeyboardInterrupt
        return whole(who, blind, stage)

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run_sweep(own, tmp_path / "killed", killed)
    (found,) = run_sweep(own, tmp_path / "killed", killed)
    assert [t.setting for t in found.contest.trials] == [t.setting for t in expected.contest.trials]
    assert found.contest.chosen.setting == expected.contest.chosen.setting
