"""`metavib demo`: every cell of its table, and nothing twice."""

import contextlib
import json
import shlex

import pytest

from metavib.interfaces.cli.training import demo, stopping
from metavib.training.optimizer import Optimizer

pytestmark = pytest.mark.whole


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Three digits of each class."""
    monkeypatch.setattr("metavib.data.sources.rotated._PER_CLASS", 3)


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
    assert "Of digits at angles that it never saw (0° and 75°), MetaVIB reads" in out
    assert "This is one seed." in out
    assert "not that MetaVIB wins" in out
    commands = out.rpartition("Next:\n")[2].splitlines()
    assert [line.split()[1] for line in commands] == ["predict", "serve", "train"]
    assert "█" not in out  # there is no terminal: a path is printed, and no picture
    assert str(tmp_path / "demo" / "report.html") in out
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
        patch.setattr(stopping, "stop_requested", stop_in_the_second_run)
        status, _, err = metavib(*command, "--seed", "3")
    assert status == 130
    printed = err.rpartition("To go on: ")[2]
    assert metavib(*shlex.split(printed)[1:]).status == 0


def test_both_methods_have_the_same_budget_and_settings_that_were_settled_beforehand():
    ours, plain = (demo.demo_experiment("0", name, 0) for name in ("metavib", "erm"))
    for name in ("steps", "images_per_domain", "domains_per_episode", "validations", "selection"):
        assert getattr(ours.training, name) == getattr(plain.training, name)
    assert ours.training.record_information > 0
    measured = demo.demo_experiment("0", "metavib", 0, information=False)
    assert measured.training.record_information == 0
    assert measured.method == ours.method


def test_a_bad_value_is_refused_before_anything_is_written(refused, command, tmp_path):
    assert "steps must be" in refused(*command, "--steps", "0")
    assert "seed must be" in refused(*command, "--seed", "-1")
    assert not (tmp_path / "demo").exists()
