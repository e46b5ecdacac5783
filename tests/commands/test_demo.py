"""`metavib demo`: every cell of its table, and nothing twice."""

import contextlib
import json
import shlex

import pytest

from metavib.commands import demo
from metavib.optimization import Optimizer


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Three digits of each class; two methods."""
    monkeypatch.setattr("metavib.data.rotated._PER_CLASS", 3)
    monkeypatch.setattr(demo, "ALGORITHMS", ("erm", "metavib"))


@pytest.fixture
def command(tmp_path):
    return ["demo", "--steps", "2", "--out", str(tmp_path / "demo"), "--targets", "0", "75"]


def test_the_table_is_whole_and_a_second_call_trains_nothing(metavib, command, tmp_path, monkeypatch):
    status, out, err = metavib(*command)
    assert status == 0
    assert "Accuracy" not in err
    assert "1,000 handwritten digits" not in out
    assert out.startswith("Accuracy on the unseen angle, %:")
    tables = [
        line for line in out.splitlines() if line.startswith(("ERM", "MetaVIB")) and "unseen" not in line
    ]
    assert len(tables) == 4  # accuracy and calibration, of two methods
    assert all(len(line.split()) == 4 for line in tables)  # the name, two angles, their mean
    for algorithm in ("erm", "metavib"):
        for angle in (0, 75):
            run = tmp_path / "demo" / f"{algorithm}-{angle}"
            assert json.loads((run / "results.json").read_text())["unseen_domain"] == str(angle)
            assert (run / "model" / "model.safetensors").exists()
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "Information plane" in page
    assert page.count("<svg") >= 10
    examples = tmp_path / "demo" / "examples"
    assert len(list(examples.iterdir())) == 10
    assert metavib("predict", tmp_path / "demo" / "metavib-0", examples).status == 0

    monkeypatch.setattr(Optimizer, "step", None)  # training would now break
    status, out, again = metavib(*command, "--json")
    assert status == 0
    assert [line for line in again.splitlines() if line in tables] == tables
    assert len(json.loads(out)["runs"]) == 4


def test_a_stopped_demo_prints_the_command_that_finishes_it(metavib, command, monkeypatch):
    monkeypatch.setattr(demo, "ALGORITHMS", ("erm",))
    steps = iter(range(2))

    @contextlib.contextmanager
    def stop_in_the_second_run():
        yield lambda: next(steps, None) is None

    with monkeypatch.context() as patch:
        patch.setattr(demo, "stop_requested", stop_in_the_second_run)
        status, _, err = metavib(*command, "--seed", "3")
    assert status == 130
    printed = err.rpartition("To go on: ")[2]
    assert metavib(*shlex.split(printed)[1:]).status == 0


def test_a_bad_value_is_refused_before_anything_is_written(refused, command, tmp_path):
    assert "steps = 0" in refused(*command, "--steps", "0")
    assert "seed = -1" in refused(*command, "--seed", "-1")
    assert not (tmp_path / "demo").exists()
