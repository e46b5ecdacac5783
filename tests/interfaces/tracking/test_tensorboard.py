"""TensorBoard's event files, read back by TensorBoard."""

from __future__ import annotations

import json
import shlex

import pytest

from metavib.interfaces.tracking import following

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def events(run):
    found = accumulator.EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0, "images": 0})
    found.Reload()
    return found


def logged(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def assert_same(run):
    """Every name of the log has its values at its steps, once."""
    found, records = events(run), logged(run)
    names = {name for record in records for name in record} - {"step", "split"}
    assert names <= set(found.Tags()["scalars"])
    for name in names:
        expected = [(record["step"], pytest.approx(record[name])) for record in records if name in record]
        assert [(event.step, event.value) for event in found.Scalars(name)] == expected


def test_event_files_hold_the_log_the_results_and_figures(metavib, training, tmp_path, monkeypatch):
    monkeypatch.setattr(following, "FIGURES", ("confusion",))
    status, _, err = metavib(*training("--log", "tensorboard"))
    assert status == 0, err
    run = tmp_path / "run"
    assert_same(run)
    found = events(run)
    results = json.loads((run / "results.json").read_text())
    (event,) = found.Scalars("unseen/accuracy/mean")
    assert (event.step, event.value) == (3, pytest.approx(results["unseen"]["accuracy"]["mean"]))
    assert any(name.startswith("figures/confusion") for name in found.Tags()["images"])
    assert b"training/steps: 3" in found.Tensors("experiment/text_summary")[0].tensor_proto.string_val[0]


def test_a_resumed_run_has_each_step_once(metavib, interrupted, training, tmp_path, monkeypatch):
    monkeypatch.setattr(following, "FIGURES", ())
    outcome = interrupted(*training("--log", "tensorboard", "--checkpoint-seconds", "0"), after=2)
    assert_same(tmp_path / "run")
    assert metavib(*shlex.split(outcome.err.rpartition("To go on: metavib ")[2])).status == 0
    assert len(logged(tmp_path / "run")) == 3
    assert_same(tmp_path / "run")


@pytest.mark.whole
def test_the_report_does_not_mind_the_folder(metavib, training, tmp_path, monkeypatch):
    monkeypatch.setattr(following, "FIGURES", ())
    metavib(*training("--log", "tensorboard"))
    status, out, _ = metavib("report", tmp_path / "run", "--out", tmp_path / "r.html", "--figure", "training")
    assert status == 0
    assert "written" in out
