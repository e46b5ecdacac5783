"""MLflow with a database in a file, which takes 10 seconds to make, and with a server that is away."""

from __future__ import annotations

import json
import shlex

import pytest

mlflow = pytest.importorskip("mlflow")
pytestmark = [pytest.mark.whole, pytest.mark.filterwarnings("default")]


@pytest.fixture
def store(tmp_path, monkeypatch):
    address = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.chdir(tmp_path)
    return mlflow.MlflowClient(address)


def test_a_stopped_and_resumed_run_is_one_run_with_log_results_and_figures(
    metavib, interrupted, training, tmp_path, store
):
    outcome = interrupted(*training("--log", "mlflow", "--checkpoint-seconds", "0"), after=2)
    (begun,) = store.search_runs([store.get_experiment_by_name("metavib").experiment_id])
    assert begun.info.status == "KILLED"
    status, _, err = metavib(*shlex.split(outcome.err.rpartition("To go on: metavib ")[2]))
    assert (status, "training goes on without" in err) == (0, False), err
    (run,) = store.search_runs([begun.info.experiment_id])
    assert (run.info.run_id, run.info.status, run.info.run_name) == (begun.info.run_id, "FINISHED", "run")
    assert run.data.params["training/steps"] == "3"
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(records) == 3
    for name in {name for record in records for name in record} - {"step", "split"}:
        history = store.get_metric_history(run.info.run_id, name)
        found = sorted((metric.step, metric.value) for metric in history)
        assert found == [(record["step"], record[name]) for record in records if name in record]
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert run.data.metrics["unseen/accuracy/mean"] == results["unseen"]["accuracy"]["mean"]
    assert "results.json" in [one.path for one in store.list_artifacts(run.info.run_id)]
    figures = [one.path for one in store.list_artifacts(run.info.run_id, "figures")]
    assert any("confusion" in path for path in figures)


def test_a_server_that_is_away_costs_one_line(metavib, training, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    status, _, err = metavib(*training("--log", "mlflow"))
    assert status == 0
    assert (tmp_path / "run" / "results.json").exists()
    (line,) = [line for line in err.splitlines() if line.startswith("mlflow is told nothing more")]
    assert line.endswith("training goes on without it.")
