"""The Ray engine, with a real Ray on this machine, killed workers and a killed driver."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from places import PATIENCE

from metavib.core.errors import UserError
from metavib.runs.sweep.ray_engine import RayEngine, train_packet

pytestmark = pytest.mark.processes


@pytest.fixture
def sweep(program, swept, tmp_path):
    """Starts the sweep with a Ray of its own; at the end nothing of either is left."""
    pytest.importorskip("ray", reason="ray is not installed")
    processes = []

    def start():
        words = [*program, "sweep", str(swept / "s.json"), "--out", str(tmp_path / "out"), "--engine", "ray"]
        words += ["--workers", "1", "--device", "cpu", "--checkpoint-seconds", "0", "--json"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        processes.append(subprocess.Popen(words, text=True, **pipes))
        return processes[-1]

    yield start
    for process in processes:
        family = descendants(process.pid)
        process.kill()
        process.communicate()
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def descendants(pid):
    """All processes below this one."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    children = [int(child) for child in path.read_text().split()] if path.exists() else []
    return children + [below for child in children for below in descendants(child)]


def at_work(process, out):
    """The process that is in the middle of a run whose checkpoint has come back; None where there is none."""
    log = (out / "log.txt").read_text() if (out / "log.txt").exists() else ""
    for name, pid in re.findall(r"^(\w+) is on .*, process (\d+), with", log, re.MULTILINE)[-1:]:
        folder = out / "cells" / name
        sent = list(folder.glob("checkpoints/*.json")) and not (folder / "validation.json").exists()
        if sent and int(pid) in descendants(process.pid):
            return name, int(pid)
    return None


def test_a_killed_driver_and_a_killed_worker_leave_no_trace_in_the_end(
    sweep, swept, sweep_results, until, tmp_path
):
    out = tmp_path / "out"
    process = sweep()
    until(lambda: at_work(process, out) is not None, lambda: process.poll() is None)
    family = descendants(process.pid)
    assert len(family) >= 3  # Ray's own processes, and a worker
    process.kill()
    process.communicate()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family))
    left = Path((out / ".ray").read_text())
    assert left.is_dir()  # which the next call clears away

    process = sweep()
    found = None

    def seen():
        nonlocal found
        found = at_work(process, out)
        return found is not None

    until(seen, lambda: process.poll() is None)
    name, pid = found
    os.kill(pid, signal.SIGKILL)
    family = descendants(process.pid)
    printed, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert f"a worker or its node was lost (WorkerCrashedError); {name} goes on from its last" in err
    begun = re.findall(rf"^{name} is on .*, with (\d+) files", (out / "log.txt").read_text(), re.MULTILINE)
    assert int(begun[-1]) > 0  # the next worker got what the killed one had sent
    assert json.loads(printed) == json.loads((out / "ranking.json").read_text())  # and nothing of Ray's
    assert sweep_results(out) == sweep_results(swept / "out")
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family))
    assert not left.exists()
    assert not (out / ".ray").exists()


def test_other_versions_of_metavib_are_refused_by_name():
    first, second = train_packet({"cells": [], "options": {}}, {}, "0.0.1", None)
    assert first["kind"] == "said"
    assert second["kind"] == "refused"
    assert "metavib 0.0.1: install the same on all" in second["why"].replace("this machine", "metavib")


@pytest.fixture
def pretended(monkeypatch):
    """A Ray with so many CPUs and GPUs, or one that cannot be reached."""
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    for name in ("USAGE_STATS_ENABLED", "ENABLE_WINDOWS_OR_OSX_CLUSTER", "AUTH_MODE", "AUTH_TOKEN"):
        monkeypatch.setenv(f"RAY_{name}", "")  # so that what the engine sets is undone

    def make(cpus=0, gpus=0, error=None):
        ray, shut = ModuleType("ray"), []

        def init(**options):
            if error is not None:
                raise error

        task = SimpleNamespace(options=lambda **options: options)
        ray.init, ray.shutdown = init, lambda: shut.append(True)
        ray.cluster_resources = lambda: {"CPU": float(cpus), "GPU": float(gpus)}
        ray.remote = lambda function: task
        monkeypatch.setitem(sys.modules, "ray", ray)
        return shut

    return make


def engine(root, **options):
    usual = {
        "address": "auto",
        "device": "auto",
        "workers": None,
        "gpus_per_task": None,
        "cpus_per_task": 1.0,
    }
    return RayEngine(root, **(usual | options))


def test_a_cluster_that_is_not_there_is_refused_by_its_address(pretended, tmp_path):
    shut = pretended(error=ConnectionError("nobody answers."))
    with pytest.raises(UserError, match=r"cannot connect to Ray at 10\.0\.0\.1:6379: nobody answers\. Check"):
        engine(tmp_path, address="10.0.0.1:6379")
    assert shut
    with pytest.raises(UserError, match="cannot connect to a Ray of its own"):
        engine(tmp_path, address=None)
    assert not (tmp_path / ".ray").exists()


@pytest.mark.parametrize(
    ("cluster", "options", "workers", "gpus"),
    [
        ((8, 0), {}, 8, 0.0),
        ((8, 0), {"cpus_per_task": 3.0}, 2, 0.0),
        ((64, 4), {}, 4, 1.0),
        ((64, 4), {"gpus_per_task": 0.25}, 16, 0.25),
        ((6, 4), {"gpus_per_task": 0.25}, 6, 0.25),
        ((64, 4), {"device": "cpu"}, 64, 0.0),
        ((64, 4), {"gpus_per_task": 0.0, "cpus_per_task": 0.5}, 128, 0.0),
    ],
    ids=str,
)
def test_as_many_tasks_as_have_room(pretended, tmp_path, cluster, options, workers, gpus):
    pretended(*cluster)
    own = engine(tmp_path, **options)
    assert (own.workers, own.task["num_gpus"], own.task["max_retries"]) == (workers, gpus, 0)
    assert own.device.type == ("cuda" if gpus else "cpu")


def test_a_task_that_fits_nowhere_is_refused(pretended, tmp_path):
    shut = pretended(2, 0)
    with pytest.raises(UserError, match="Ray has 2 CPUs and 0 GPUs: too few for a task with 1 and 1"):
        engine(tmp_path, gpus_per_task=1.0)
    assert shut
