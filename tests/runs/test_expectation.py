"""What to expect of a new domain, from runs that held domains out."""

from __future__ import annotations

import json
import shutil
import statistics

import pytest
from conftest import QUICK

from metavib.runs.cells import Cell
from metavib.runs.expectation import expectation
from metavib.training.experiment import experiment_from
from metavib.training.run_directory import RunDirectory


@pytest.fixture(scope="module")
def measured(make_folder, tmp_path_factory):
    """A folder of images and two finished runs of ERM in one folder, one for each of two held-out domains."""
    from metavib.interfaces.cli.main import main

    root = tmp_path_factory.mktemp("measured")
    folder = make_folder(root / "images", domains="art photo sketch")
    command = [
        "train",
        str(folder),
        *ERM,
        "--target",
        "art,sketch",
        "--no-batch",
        "--out",
        str(root / "runs"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAVIB_CACHE", str(root / "cache"))
        assert main(command) == 0
    return folder, root / "runs"


ERM = [*QUICK[2:10], "--algorithm", "erm"]
for _setting in ("images_per_domain=8", "repeats=2", "validations=2"):
    ERM += ["--set", _setting]


def final_experiment(folder, **changes):
    values = {"dataset": str(folder), "target": None, "seed": 1, "algorithm": "erm", "backbone": "digits"}
    values |= {"weights": "none"}
    small = {"steps": 3, "images_per_domain": 8, "repeats": 2, "validations": 2}
    return experiment_from(
        values | {k: v for k, v in changes.items() if k in values},
        small | {k: v for k, v in changes.items() if k not in values},
    )


def accuracy_of(run):
    return json.loads((run / "results.json").read_text())["unseen"]["accuracy"]["mean"]


def test_each_held_out_domain_counts_once(measured):
    folder, runs = measured
    experiment = final_experiment(folder)
    found = expectation([runs], experiment, experiment.dataset_in(None))
    own = {name: accuracy_of(next(runs.glob(f"*-{name}-*"))) for name in ("art", "sketch")}
    assert {name: one.accuracy for name, one in found.domains.items()} == own
    assert found.accuracy.mean == pytest.approx(statistics.mean(own.values()))
    assert found.accuracy.deviation == pytest.approx(statistics.stdev(own.values()))
    assert (found.runs, found.differences) == (2, ())
    assert found.domains["art"].images == 8


def test_runs_may_be_named_one_by_one_and_a_copy_counts_once(measured, tmp_path):
    folder, runs = measured
    one = next(runs.glob("*-art-*"))
    shutil.copytree(one, tmp_path / "copy")
    experiment = final_experiment(folder)
    found = expectation([one, tmp_path], experiment, experiment.dataset_in(None))
    assert found.runs == 1
    assert list(found.domains) == ["art"]


def test_runs_with_other_settings_are_used_and_said_to_differ(measured):
    folder, runs = measured
    experiment = final_experiment(folder, steps=5)
    found = expectation([runs], experiment, experiment.dataset_in(None))
    assert found.differences == ("training.steps 3, here 5",)


def test_the_command_writes_it_into_results_and_card_and_shows_it(metavib, measured, tmp_path):
    folder, runs = measured
    command = ["train", folder, *ERM, "--target", "none", "--out", tmp_path / "run", "--json"]
    status, out, err = metavib(*command, "--measured-by", runs)
    assert status == 0, err
    assert "expected on a new domain: accuracy" in err
    assert "over 2 domains that 2 runs held out" in err
    results = json.loads(out)
    assert results["expected"]["runs"] == 2
    assert json.loads((tmp_path / "run" / "results.json").read_text())["expected"] == results["expected"]
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert f"Expected accuracy: {results['expected']['accuracy']['mean']:.4f}" in card
    assert "| `art` |" in card


def test_a_model_that_is_finished_gets_it_later_and_keeps_it(metavib, measured, tmp_path):
    folder, runs = measured
    command = ["train", folder, *ERM, "--target", "none", "--out", tmp_path / "run"]
    assert metavib(*command).status == 0
    weights = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    assert (
        "expected on a new domain" in metavib("train", "--out", tmp_path / "run", "--measured-by", runs).out
    )
    assert (tmp_path / "run" / "model" / "model.safetensors").read_bytes() == weights
    assert "Expected accuracy" in (tmp_path / "run" / "model" / "README.md").read_text()
    assert "expected on a new domain: accuracy" in metavib("train", "--out", tmp_path / "run").out


def test_a_grid_of_final_models_gets_it_too(metavib, measured, tmp_path):
    folder, runs = measured
    command = ["train", folder, *ERM[2:], "--target", "none", "--seeds", "4,5", "--out", tmp_path / "g"]
    status, out, err = metavib(*command, "--measured-by", runs, "--json")
    assert status == 0, err
    assert [run["expected"]["runs"] for run in json.loads(out)["runs"]] == [2, 2]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"results.json": {"dataset": "other"}}, "was measured on other"),
        ({"results.json": {"classes": ["cat", "emu"]}}, "other classes than this run (dog, emu)"),
        ({"results.json": None}, "no finished run that held a domain out"),
    ],
    ids=["another dataset", "other classes", "unfinished"],
)
def test_runs_that_say_nothing_of_this_model_are_refused(refused, measured, tmp_path, change, said):
    folder, runs = measured
    copy = shutil.copytree(next(runs.glob("*-art-*")), tmp_path / "copy")
    for name, values in change.items():
        if values is None:
            (copy / name).unlink()
        else:
            record = json.loads((copy / name).read_text())
            (copy / name).write_text(json.dumps(record | values))
    command = ["train", folder, *ERM, "--target", "none", "--out", tmp_path / "run", "--measured-by", copy]
    assert said in refused(*command)
    assert not (tmp_path / "run").exists()


def test_runs_selected_by_the_oracle_or_of_another_method_are_not_used(refused, metavib, measured, tmp_path):
    folder, runs = measured
    peeking = ["train", folder, *ERM, "--target", "art", "--select", "oracle", "--out", tmp_path / "peek"]
    assert metavib(*peeking).status == 0
    final = ["train", folder, *ERM, "--target", "none", "--out", tmp_path / "run", "--measured-by"]
    assert "no finished run that held a domain out" in refused(*final, tmp_path / "peek")
    jigen = [*final[:-1], "--algorithm", "jigen", "--measured-by", runs]
    assert "the runs are of erm on digits, and this one is jigen on digits" in refused(*jigen)


def test_it_goes_with_a_model_of_all_domains_only(refused, measured, tmp_path):
    folder, runs = measured
    command = ["train", folder, *ERM, "--target", "art", "--out", tmp_path / "run", "--measured-by", runs]
    assert "--measured-by goes with --target none" in refused(*command)
    grid = ["train", folder, *ERM, "--target", "all", "--out", tmp_path / "run", "--measured-by", runs]
    assert "--measured-by goes with --target none" in refused(*grid)
    assert "there is no folder" in refused(
        "train",
        folder,
        *ERM,
        "--target",
        "none",
        "--out",
        tmp_path / "run",
        "--measured-by",
        tmp_path / "gone",
    )


def test_a_stopped_run_says_how_to_go_on_with_it(interrupted, measured, tmp_path):
    folder, runs = measured
    command = ["train", folder, *ERM, "--target", "none", "--out", tmp_path / "run", "--measured-by", runs]
    assert f"--measured-by {runs}" in interrupted(*command, after=2).err


def test_a_cell_that_holds_nothing_out_has_another_identity(measured):
    folder, _ = measured
    final = Cell(final_experiment(folder), RunDirectory(folder).path)
    assert (
        final.experiment.identity()
        != experiment_from(final.experiment.to_json() | {"target": "none"}).identity()
    )
