"""Trackers are told what a run logs and measures, and whatever they do, the run is the same."""

from __future__ import annotations

import json
import shlex
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from metavib.interfaces.tracking import following
from metavib.interfaces.tracking.trackers import TRACKERS, Tracker
from metavib.interfaces.tracking.writer import Writer, numbers
from metavib.training.experiment import flat

TOLD: dict[str, list[Any]] = {}


class Remembering(Writer):
    """A tracker that remembers what it is told."""

    def __init__(self, run):
        self.known_as = run.known_as or f"id of {run.name}"
        self.told = TOLD.setdefault(run.name, [])
        self.told.append(("began", run.known_as, run.group, run.settings["training/steps"]))
        self.last = max((step for kind, step, *_ in self.told if kind == "log"), default=-1)

    def log(self, step, values):
        self.told.append(("log", step, values))

    def finish(self, step, results, figures, file):
        self.told.append(("finish", step, results, [figure.name for figure in figures], file.name))

    def close(self, *, finished):
        self.told.append(("close", finished))


class Breaking(Remembering):
    """A tracker whose server goes away after two records."""

    def log(self, step, values):
        super().log(step, values)
        if step >= 2:
            raise ConnectionError("the server has gone\nand much more is said about it")


class Deaf(Remembering):
    """A tracker that never answers."""

    released = threading.Event()

    def log(self, step, values):
        self.released.wait()


@pytest.fixture(autouse=True)
def _trackers(monkeypatch):
    TOLD.clear()
    monkeypatch.setattr(following, "FIGURES", ())  # but where a test looks at them
    for name, writer in {"memory": Remembering, "broken": Breaking, "deaf": Deaf}.items():
        monkeypatch.setitem(TRACKERS, name, Tracker("json", writer))


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def as_logged(run: Path) -> list[Any]:
    return [
        ("log", one["step"], {name: one[name] for name in one if name not in ("step", "split")})
        for one in records(run)
    ]


def test_a_tracker_has_what_the_log_has_and_then_results_and_figures(
    metavib, training, tmp_path, monkeypatch
):
    monkeypatch.setattr(following, "FIGURES", ("training", "confusion"))
    run = tmp_path / "run"
    status, _, err = metavib(*training("--log", "memory"))
    assert status == 0, err
    began, *logged, finish, close = TOLD["run"]
    assert began == ("began", None, tmp_path.name, "3")
    assert logged == as_logged(run)
    assert len(logged) == 3
    assert "validation_accuracy" in logged[-1][2]
    kind, step, results, figures, file = finish
    assert (kind, step, file) == ("finish", 3, "results.json")
    measured = json.loads((run / "results.json").read_text())
    assert results["unseen/accuracy/mean"] == measured["unseen"]["accuracy"]["mean"]
    assert results["unsure/answered"] == measured["unsure"]["answered"]
    assert not any(name.startswith("data") for name in results)
    assert {"confusion", "training"} <= {name.partition("-")[0] for name in figures}, figures
    assert close == ("close", True)
    assert json.loads((run / "trackers.json").read_text()) == {
        "memory": {"run": "id of run", "finished": True}
    }


def test_a_finished_run_is_told_of_once(metavib, training):
    metavib(*training())
    metavib(*training("--log", "memory"))  # finished without a tracker: it is told of all
    assert [one[0] for one in TOLD["run"]] == ["began", "log", "log", "log", "finish", "close"]
    metavib(*training("--log", "memory"))
    assert len(TOLD["run"]) == 6


def test_a_resumed_run_goes_on_where_the_tracker_has_it(metavib, interrupted, training, tmp_path):
    outcome = interrupted(*training("--log", "memory", "--checkpoint-seconds", "0"), after=2)
    assert "--log memory" in outcome.err
    assert TOLD["run"][-1] == ("close", False)
    metavib(*shlex.split(outcome.err.rpartition("To go on: metavib ")[2]))
    assert [one for one in TOLD["run"] if one[0] == "log"] == as_logged(tmp_path / "run")
    assert [one[1] for one in TOLD["run"] if one[0] == "began"] == [None, "id of run"]


def test_a_tracker_that_breaks_costs_one_line_and_changes_nothing(metavib, training, tmp_path):
    status, _, err = metavib(*training("--log", "broken,memory", out=tmp_path / "told"))
    assert status == 0
    lines = [line for line in err.splitlines() if "broken" in line]
    assert lines == ["broken is told nothing more (the server has gone); training goes on without it."]
    metavib(*training(out=tmp_path / "alone"))
    told, alone = tmp_path / "told", tmp_path / "alone"
    assert (told / "results.json").read_text() == (alone / "results.json").read_text()
    assert records(told) == records(alone)
    assert (told / "model" / "model.safetensors").read_bytes() == (
        alone / "model" / "model.safetensors"
    ).read_bytes()
    assert json.loads((told / "trackers.json").read_text())["memory"]["finished"]


def test_a_tracker_that_never_answers_is_left_alone(metavib, training, tmp_path, monkeypatch):
    monkeypatch.setattr(following, "SECONDS_TO_END", 0.05)
    status, _, err = metavib(*training("--log", "deaf"))
    Deaf.released.set()
    assert status == 0
    assert "deaf has not taken everything" in err
    assert (tmp_path / "run" / "results.json").exists()


@pytest.mark.parametrize("batch", ["--no-batch", "--batch=2"])
def test_every_run_of_a_grid_is_told_of(metavib, training, tmp_path, batch):
    words = training("--log", "memory", batch, out=tmp_path / "grid")
    at = words.index("--seed")
    words[at : at + 2] = ["--seeds", "2"]
    status, _, err = metavib(*words)
    assert status == 0, err
    runs = sorted((tmp_path / "grid").glob("*/results.json"))
    assert sorted(TOLD) == [path.parent.name for path in runs]
    for path in runs:
        told = TOLD[path.parent.name]
        assert [one for one in told if one[0] == "log"] == as_logged(path.parent)
        assert [one[0] for one in told if one[0] != "log"] == ["began", "finish", "close"]
        assert told[0][2] == "grid"


def test_a_damaged_record_of_trackers_begins_anew(metavib, interrupted, training, tmp_path):
    interrupted(*training("--log", "memory", "--checkpoint-seconds", "0"), after=2)
    (tmp_path / "run" / "trackers.json").write_text('["nonsense"')
    assert metavib(*training("--log", "memory")).status == 0
    assert [one[1] for one in TOLD["run"] if one[0] == "began"] == [None, None]


def test_an_unknown_tracker_is_refused(refused, training, tmp_path):
    assert "unknown tracker 'tensorbored'; did you mean 'tensorboard'?" in refused(
        *training("--log", "tensorbored")
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
@pytest.mark.parametrize("several", [False, True])
def test_a_tracker_that_is_not_installed_is_one_line_before_training(
    refused, training, tmp_path, monkeypatch, name, several
):
    monkeypatch.setitem(sys.modules, TRACKERS[name].module, None)  # importing it now fails
    line = refused(*training("--log", name, *(["--target", "all"] if several else [])))
    assert f"--log {name} needs {name}; run: pip install 'metavib[{name}]'" in line
    assert not (tmp_path / "run").exists()


def test_values_within_values_are_named_by_their_path():
    assert flat({"a": {"b": 1, "c": {"d": None}}, "e": "x"}, separator="/") == {
        "a/b": 1,
        "a/c/d": None,
        "e": "x",
    }
    assert numbers({"a": {"b": 1, "c": True}, "e": "x", "f": [1.0]}) == {"a/b": 1.0}
