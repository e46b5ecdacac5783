"""`metavib.train`: the runs of the command line, from Python."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path

import pytest

import metavib
from metavib.core.errors import UserError
from metavib.interfaces.cli.training import stopping
from metavib.interfaces.folder_training import FinishedRun

SETTINGS = {"images_per_domain": 8, "latent_draws": 2, "classifier_draws": 2, "latent_width": 16}
SETTINGS |= {"repeats": 2, "validations": 2}


def trained(folder, out, **changes):
    given = {
        "target": "sketch",
        "seed": 1,
        "steps": 3,
        "backbone": "digits",
        "weights": "none",
        "device": "cpu",
    }
    given |= {"out": out, "settings": SETTINGS}
    return metavib.train(folder, **(given | changes))


def test_it_is_the_run_of_the_command_line(finished, tmp_path):
    run = trained(finished.folder, tmp_path / "run")
    for name in ("model/model.safetensors", "metrics.jsonl", "results.json", "config.yaml"):
        assert (run.path / name).read_bytes() == (finished.run / name).read_bytes(), name
    assert run.results == json.loads((finished.run / "results.json").read_text())


def test_a_run_has_results_classes_a_predictor_a_report_and_a_short_repr(finished, tmp_path):
    run = trained(finished.folder, finished.run)  # it is there already
    accuracy = 100 * run.results["unseen"]["accuracy"]["mean"]
    assert run.path == finished.run
    text = f"metavib on images, 'sketch' unseen, accuracy {accuracy:.1f} %"
    assert repr(run) == f"<metavib run {finished.run}: {text}>"
    assert {(row.label, row.domain) for row in run.classes if row.unseen} == {
        ("cat", "sketch"),
        ("dog", "sketch"),
    }
    images = sorted((finished.folder / "sketch" / "cat").iterdir())
    assert [answer.label for answer in run.predictor(mode="mean")(images)]
    page = run.report(tmp_path / "page.html")
    assert "Classes on the unseen domain" in page.read_text()


def test_the_same_call_returns_a_finished_run(folder, tmp_path, capsys):
    first = trained(folder, tmp_path / "run")
    capsys.readouterr()
    again = trained(folder, tmp_path / "run")
    assert "is finished already; nothing was trained" in capsys.readouterr().err
    assert again.results == first.results
    assert metavib.train(out=tmp_path / "run").results == first.results


def test_without_a_seed_it_is_0_and_the_place_is_the_usual_one(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = trained(folder, None, seed=None)
    assert run.path == Path("runs/images-sketch-metavib-seed0")


@contextlib.contextmanager
def stopping_at_once():
    yield lambda: True


def test_an_interrupted_call_leaves_a_run_that_goes_on(folder, finished, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(stopping, "stop_requested", stopping_at_once)
        with pytest.raises(KeyboardInterrupt, match="stopped after step 1 of 3; the run is kept"):
            trained(finished.folder, tmp_path / "run")
    assert not (tmp_path / "run" / "results.json").exists()
    run = metavib.train(out=tmp_path / "run", device="cpu")
    weights = "model/model.safetensors"
    assert (run.path / weights).read_bytes() == (finished.run / weights).read_bytes()


def test_none_holds_nothing_out_whatever_the_domains_are_called(make_folder, tmp_path):
    images = make_folder(tmp_path / "images", domains="art none photo")
    run = trained(images, tmp_path / "run", target=None)
    assert run.results["unseen"] is None
    assert "nothing held out, accuracy" in repr(run)
    assert repr(run).endswith("on source validation>")
    held_out = trained(images, tmp_path / "other", target="none", measured_by=())
    assert held_out.results["unseen_domain"] == "none"


def test_runs_that_held_domains_out_say_what_to_expect(folder, tmp_path):
    measured = trained(folder, tmp_path / "measured")
    final = trained(folder, tmp_path / "final", target=None, measured_by=measured.path)
    expected = final.results["expected"]["domains"]["sketch"]["accuracy"]
    assert expected == measured.results["unseen"]["accuracy"]["mean"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"target": ...}, "name the domain to hold out, art, cartoon, photo, sketch, or none"),
        ({"target": "scetch"}, "unknown target domain 'scetch'; did you mean 'sketch'"),
        ({"target": "all"}, "unknown target domain 'all'"),
        ({"settings": {"betta": 1}}, "unknown setting 'betta'"),
        ({"settings": {"beta": [0.1, 0.2]}}, "beta must be a number"),
        ({"algorithm": "erm,metavib"}, "unknown algorithm"),
        ({"device": "mps"}, "no Apple GPU"),
        ({"without": "sketch"}, "cannot be the target and left out"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said_in_one_line(folder, tmp_path, changes, said, monkeypatch):
    import torch

    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UserError, match=said):
        trained(folder, tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


def test_a_thread_that_hears_no_signals_can_train(folder, tmp_path):
    found: list[FinishedRun] = []
    worker = threading.Thread(target=lambda: found.append(trained(folder, tmp_path / "run")))
    worker.start()
    worker.join()
    assert found[0].results["unseen_domain"] == "sketch"
