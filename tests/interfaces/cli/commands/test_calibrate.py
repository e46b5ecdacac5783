"""`metavib calibrate`: a finished run learns how sure it may be on a new domain."""

import contextlib
import io
import json
import shutil
from dataclasses import asdict

import pytest

import metavib as package
from metavib.interfaces.cli.main import main


@pytest.fixture(scope="module")
def calibrated_once(finished, tmp_path_factory):
    """A calibrated run that is not to be changed, and what the command said on stdout and stderr."""
    run = shutil.copytree(finished.run, tmp_path_factory.mktemp("calibrated") / "run")
    out, err = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setenv("METAVIB_CACHE", str(run.parent / "cache"))
        assert main(["calibrate", str(run), "--json"]) == 0
    return finished._replace(run=run), out.getvalue(), err.getvalue()


@pytest.fixture
def calibrated(calibrated_once, tmp_path):
    """A calibrated run that a test may damage."""
    return calibrated_once[0]._replace(run=shutil.copytree(calibrated_once[0].run, tmp_path / "calibrated"))


def test_it_is_added_to_the_model_and_the_card(finished, calibrated_once):
    calibrated, out, err = calibrated_once
    before = json.loads((finished.run / "model" / "config.json").read_text())
    weights = (finished.run / "model" / "model.safetensors").read_bytes()
    told = json.loads(out)
    after = json.loads((calibrated.run / "model" / "config.json").read_text())
    assert (
        set(told["left_out"]) == set(after["source_domains"]) == set(after["domain_calibration"]["left_out"])
    )
    assert after["domain_calibration"]["version"] == 4
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"domain_calibration", "check"}
    assert (calibrated.run / "model" / "model.safetensors").read_bytes() == weights
    assert "validation images: its training images are taken too" in err  # two images a domain
    assert "Calibrated across domains" in (calibrated.run / "model" / "README.md").read_text()


def test_twice_is_as_good_as_once(metavib, calibrated):
    config = calibrated.run / "model" / "config.json"
    first = config.read_text()
    assert metavib("calibrate", calibrated.run)[0] == 0
    assert config.read_text() == first


def test_labels_stay_what_they_were(finished, calibrated):
    images = sorted(finished.folder.rglob("*.png"))[:4]
    before, after = (package.load(own.run)(images) for own in (finished, calibrated))
    assert [one.label for one in before] == [one.label for one in after]
    assert {one.foreign for one in before} == {None}
    assert {one.foreign for one in after} <= {True, False}


def test_a_calibration_of_another_network_is_refused(refused, calibrated):
    from tests.forging import rewrite
    from tests.models.test_domain_calibration import with_look

    def forged(record):
        record["domain_calibration"]["look"] = asdict(with_look().look)
        return record

    rewrite(calibrated.run / "model" / "config.json", forged)
    image = next(calibrated.folder.rglob("*.png"))
    told = refused("predict", calibrated.run, image)
    assert "maps that the network lacks ('passed'). Run metavib calibrate again" in told


def test_what_is_no_run_is_refused(refused, tmp_path):
    assert "there is no run directory" in refused("calibrate", tmp_path / "nothing")


def test_promises_need_a_calibration(metavib, refused, finished, calibrated):
    image = next(finished.folder.rglob("*.png"))
    for asked in (["--max-error", "5%"], ["--sets", "90%"]):
        assert "Run metavib calibrate" in refused("predict", finished.run, image, *asked)
    status, out, err = metavib(
        "predict", calibrated.run, image, "--max-error", "50%", "--sets", "90%", "--json"
    )
    assert status == 0, err
    told = json.loads(out)
    assert told["label"] in told["labels"]
    status, out, _ = metavib("predict", calibrated.run, image, "--max-error", "5%")
    assert "at most 5% of the answers wrong: measured on 3 left-out source domains" in out
    status, out, _ = metavib("predict", calibrated.run, image, "--csv")
    assert out.splitlines()[0].split(",")[:7] == [
        *("file", "label", "probability", "entropy", "model_entropy", "unsure", "foreign")
    ]


def test_what_does_not_go_together_is_refused(refused, finished):
    image = next(finished.folder.rglob("*.png"))
    assert "leave one of them out" in refused(
        "predict", finished.run, image, "--max-error", "5%", "--coverage", "90%"
    )
    assert "must be above 0" in refused("predict", finished.run, image, "--max-error", "500%")


@pytest.mark.parametrize("damage", ["version", "levels"])
def test_a_damaged_calibration_is_refused(refused, calibrated, damage):
    from tests.forging import rewrite

    def forged(record):
        record["domain_calibration"][damage] = 99 if damage == "version" else []
        return record

    rewrite(calibrated.run / "model" / "config.json", forged)
    image = next(calibrated.folder.rglob("*.png"))
    assert "does not describe a model" in refused("predict", calibrated.run, image)


def test_train_does_it_in_the_end(metavib, training, tmp_path):
    status, out, err = metavib(*training("--calibrate", "domains"))
    assert status == 0, err
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert "expected accuracy on a new domain" in out
    assert set(config["domain_calibration"]["left_out"]) == set(config["source_domains"])


def test_whole_folds_are_trained_once_and_never_see_the_domain(metavib, finished_copy):
    status, out, err = metavib("calibrate", finished_copy.run, "--folds", "whole", "--json")
    assert status == 0, err
    told = json.loads(out)
    config = json.loads((finished_copy.run / "model" / "config.json").read_text())
    assert told["folds"] == "whole" == config["domain_calibration"]["folds"]
    assert told["drifted"] == {}
    assert set(told["left_out"]) == set(config["source_domains"])
    folds = sorted((finished_copy.run / "folds").glob("*/model/config.json"))
    sources = [json.loads(path.read_text())["source_domains"] for path in folds]
    assert sorted(map(len, sources)) == [len(config["source_domains"]) - 1] * len(config["source_domains"])
    assert not any(config["unseen_domain"] in own for own in sources)
    assert not list(
        (finished_copy.run / "folds").rglob("results.json")
    )  # none is measured on a left-out domain
    written = [path.stat().st_mtime_ns for path in folds]
    status, _, err = metavib("calibrate", finished_copy.run, "--folds", "whole")
    assert status == 0, err
    assert [path.stat().st_mtime_ns for path in folds] == written  # nothing was trained again
    assert json.loads((finished_copy.run / "model" / "config.json").read_text()) == config
