"""`metavib sweep` on this machine: what it prints and refuses, and that kills leave no trace in the end."""

import json
import multiprocessing
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from places import PATIENCE
from sweep_fixtures import STEPS

from metavib.interfaces.cli.main import main
from metavib.interfaces.cli.training import sweep
from metavib.training import checkpoint

pytestmark = pytest.mark.processes


@pytest.fixture
def file(folder, tmp_path):
    """Writes a sweep file in YAML."""

    def write(**values):
        small = {"steps": 2, "images_per_domain": 8, "repeats": 2, "validations": 1}
        lines = [f"dataset: {folder}", "backbone: digits", "weights: none", "targets: [sketch]"]
        lines += [f"settings: {json.dumps(small)}"]
        lines += [f"{name}: {json.dumps(value)}" for name, value in values.items()]
        path = tmp_path / "mine.yaml"
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


# --- what comes out -----------------------------------------------------------------------------------------


def test_the_ranking_is_printed_written_and_the_same_when_it_is_called_again(metavib, swept):
    flags = ("sweep", swept / "s.json", "--out", swept / "out", "--json")
    times = {path: path.stat().st_mtime_ns for path in swept.glob("out/cells/**/*")}
    status, out, err = metavib(*flags)
    assert status == 0
    assert {path: path.stat().st_mtime_ns for path in swept.glob("out/cells/**/*")}.keys() == times.keys()
    record = json.loads(out)
    assert record == json.loads((swept / "out/ranking.json").read_text())
    (row,) = record["ranking"]
    (choice,) = row["targets"]["sketch"]["chosen"]
    assert choice["score"] == max(trial["score"] for trial in choice["trials"])
    (run,) = row["targets"]["sketch"]["runs"]
    results = json.loads((swept / "out" / run["run"] / "results.json").read_text())
    assert row["mean"] == pytest.approx(100 * results["unseen"]["accuracy"]["mean"])
    assert len(list(swept.glob("out/cells/*/results.json"))) == 1  # of what was chosen alone
    assert len(list(swept.glob("out/cells/*/validation.json"))) == 2
    assert "grid search, up to 2 trials for each algorithm and target, by source-validation." in err
    assert re.search(rf"1\. erm +{row['mean']:.2f} ", err)
    assert "ranking.md" in err


@pytest.mark.usefixtures("inline")
def test_runs_that_break_down_are_out_and_where_none_is_left_the_status_is_2(metavib, file, tmp_path):
    words = ("--out", tmp_path / "out", "--device", "cpu", "--json")
    settings = {"steps": 3, "images_per_domain": 8, "repeats": 2, "clip_norm": 0, "selection": "last"}
    path = file(algorithms="erm", space={"learning_rate": [1e30, 2e30]})
    path.write_text(re.sub("settings: .*", f"settings: {json.dumps(settings)}", path.read_text()))
    status, out, err = metavib("sweep", path, *words)
    assert status == 2
    (row,) = json.loads(out)["ranking"]
    assert row["mean"] is None
    assert "no result for erm, 'sketch' unseen: no setting could be trained: training broke down" in err
    assert "Traceback" not in err


@pytest.mark.usefixtures("inline")
def test_the_oracle_is_marked(metavib, file, tmp_path):
    path = file(algorithms="erm", select="test-domain validation set")
    status, out, err = metavib("sweep", path, "--out", tmp_path / "out", "--device", "cpu", "--json")
    assert status == 0
    assert json.loads(out)["select"]["peeks"] is True
    assert "PEEKS at the unseen domain" in err
    assert "PEEKS at the unseen domain" in (tmp_path / "out/ranking.md").read_text()


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--engine", "rey"], "unknown engine 'rey'; did you mean 'ray'"),
        (["--workers", "0"], "--workers must be a whole number from 1"),
        (["--retries", "-1"], "--retries must be a whole number from 0"),
        (["--batch", "0"], "--batch must be a whole number from 1"),
        (["--checkpoint-seconds", "nan"], "--checkpoint-seconds must be a number from 0"),
        (["--gpus-per-task", "1.5", "--engine", "ray"], "--gpus-per-task must be a share from 0 to 1"),
        (["--cpus-per-task", "-1", "--engine", "ray"], "--cpus-per-task must be a share"),
        (["--address", "auto"], "are for --engine ray"),
        (["--engine", "ray", "--address", "auto", "--workers", "2"], "a cluster at --address has its own"),
        (["--device", "tpu"], "unknown device 'tpu'|device 'tpu' is not supported"),
        (["--device", "tpu", "--engine", "ray"], "unknown device 'tpu'"),
    ],
    ids=str,
)
def test_flags_that_will_not_do_are_refused(refused, file, tmp_path, flags, said):
    assert re.search(said, refused("sweep", file(), "--out", tmp_path / "out", *flags))
    assert not list(tmp_path.glob("out/cells"))


def test_a_file_that_is_missing_or_no_yaml_is_refused(refused, tmp_path):
    assert "cannot read the configuration" in refused("sweep", tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("dataset: [")
    assert "is not valid YAML" in refused("sweep", tmp_path / "bad.yaml")


def test_a_mistyped_setting_is_refused_with_the_nearest_name(refused, file):
    assert "unknown setting in space 'bta'; did you mean 'beta'" in refused("sweep", file(space={"bta": [1]}))


@pytest.mark.usefixtures("inline")
def test_what_a_worker_cannot_do_for_the_user_s_fault_is_one_line(metavib, file, folder, tmp_path):
    (folder / "art" / "cat" / "0.png").write_bytes(b"no image")
    status, out, err = metavib("sweep", file(algorithms="erm"), "--out", tmp_path / "out", "--device", "cpu")
    assert (status, out) == (2, "")
    assert "0.png" in err.splitlines()[-1]
    assert "Traceback" not in err


def test_without_ray_the_extra_is_named(refused, file, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in ("USAGE_STATS_ENABLED", "ENABLE_WINDOWS_OR_OSX_CLUSTER", "AUTH_MODE", "AUTH_TOKEN"):
        monkeypatch.setenv(f"RAY_{name}", "0")  # so that what the engine sets is undone
    said = refused("sweep", file(), "--engine", "ray", "--out", tmp_path / "out")
    assert "pip install 'metavib[ray]'" in said


# --- faults -------------------------------------------------------------------------------------------------


def newest_step(out):
    """Of the run that is not over."""
    (path,) = (path for path in out.glob("cells/*") if not (path / "validation.json").exists())
    return max(checkpoint.steps(path / "checkpoints"), default=0)


def workers_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_killed_worker_a_killed_driver_and_ctrl_c_leave_no_trace_in_the_end(
    metavib, refused, program, inline_engine, swept, sweep_results, until, begun, tmp_path, monkeypatch
):
    out = tmp_path / "out"
    words = ["sweep", str(swept / "s.json"), "--out", str(out), "--device", "cpu", "--workers", "1"]
    words += ["--checkpoint-seconds", "0"]  # a checkpoint a step
    # A real process; the server that it is forked from has imported torch already.
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["metavib.interfaces.cli.training.sweep"])
    driver = server.Process(target=main, args=(words,))
    driver.start()
    try:
        until(lambda: begun(out), driver.is_alive)
        os.kill(workers_of(driver.pid)[0], signal.SIGKILL)
        until(lambda: "a worker was killed by signal 9" in (out / "log.txt").read_text(), driver.is_alive)
        until(lambda: begun(out, finished=1), driver.is_alive)
        assert "another sweep is at work in" in refused(*words)
        workers = workers_of(driver.pid)
    finally:
        driver.kill()
        driver.join()
    assert len(workers) == 1
    until(lambda: not Path(f"/proc/{workers[0]}").exists())  # nobody trains on behind our back
    (finished,) = out.glob("cells/*/validation.json")
    written = finished.stat().st_mtime_ns
    reached = newest_step(out)
    assert reached < STEPS

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([*program, *words, "--json"], text=True, **pipes)

    def alive():
        return process.poll() is None

    try:
        until(lambda: newest_step(out) > reached, alive)
        (worker,) = workers_of(process.pid)
        os.kill(worker, signal.SIGSTOP)  # so that it cannot be done before it hears of the end
        process.send_signal(signal.SIGINT)
        until(lambda: "asked to stop" in (out / "log.txt").read_text(), alive)
        os.kill(worker, signal.SIGCONT)
        printed, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, printed) == (130, ""), err
    until(lambda: not Path(f"/proc/{worker}").exists())
    last = err.splitlines()[-1]
    assert last.startswith(
        "metavib: stopped with 1 of 2 runs done; the runs are kept. To go on: metavib sweep "
    )
    monkeypatch.setattr(sweep, "engine_of", inline_engine)
    again = metavib(*shlex.split(last.partition("To go on: metavib ")[2]))
    assert again.status == 0, again.err
    assert finished.stat().st_mtime_ns == written  # it was not trained again
    assert sweep_results(out) == sweep_results(swept / "out")
