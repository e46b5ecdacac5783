"""A model of all domains: nothing is held out, and everything downstream lives with that."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from conftest import QUICK

from metavib.interfaces.cli.training.experiments import usual_place
from metavib.models.directory import load_model
from metavib.serving.predictor import load
from metavib.training.experiment import experiment_from

pytestmark = pytest.mark.whole

ERM = ["--algorithm", "erm", "--target", "none", "--steps", "3", "--seed", "1"]
ERM += ["--backbone", "digits", "--weights", "none"]
for name in ("images_per_domain=8", "repeats=2", "validations=2"):
    ERM += ["--set", name]


@pytest.fixture(scope="module")
def final(make_folder, tmp_path_factory):
    """A finished run that held nothing out, its folder, and the run that held sketch out."""
    from metavib.interfaces.cli.main import main

    root = tmp_path_factory.mktemp("final")
    folder = make_folder(root / "images")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAVIB_CACHE", str(root / "cache"))
        for target in ("none", "sketch"):
            out = str(root / "runs" / target)
            assert main(["train", str(folder), "--out", out, *QUICK, "--target", target]) == 0
    return root / "runs" / "none", folder, root / "runs" / "sketch"


def results_of(run):
    return json.loads((run / "results.json").read_text())


def test_all_domains_train_and_nothing_is_measured_as_unseen(final):
    run, _, _ = final
    results = results_of(run)
    assert (results["unseen_domain"], results["unseen"], results["unsure"]) == (None, None, None)
    assert results["data"]["source_domains"] == ["art", "cartoon", "photo", "sketch"]
    assert results["data"]["target"] is None
    assert results["source_validation"]["images"] == 8
    assert set(results["source_validation"]["domains"]) == {"art", "cartoon", "photo", "sketch"}
    assert json.loads((run / "experiment.json").read_text())["experiment"]["target"] is None


def test_training_says_that_nothing_was_held_out_and_what_it_does_not_know(metavib, training):
    status, out, err = metavib(*training("--target", "none"))
    assert status == 0
    assert "trained on all 4 domains and nothing held out" in err
    assert "source validation (nothing was held out), 8 images" in out
    assert "accuracy on a new domain is not known: --measured-by RUNS" in out


def test_its_usual_place_says_none(tmp_path):
    values = {"dataset": "rotated-digits", "target": None, "seed": 3, "algorithm": "erm"}
    assert usual_place(experiment_from(values)) == Path("runs/rotated-digits-none-erm-seed3")


def test_the_card_says_that_nothing_was_held_out(final):
    card = (final[0] / "model" / "README.md").read_text()
    assert "nothing was held out" in card
    assert "What it reaches on a new domain is not known" in card
    assert "unseen domain: none" in card


def test_a_finished_one_is_found_again_and_goes_on_by_its_directory_alone(metavib, final, tmp_path):
    run = shutil.copytree(final[0], tmp_path / "run")
    status, out, err = metavib("train", "--out", run, "--json")
    assert status == 0
    assert "is finished already" in err
    assert json.loads(out)["unseen"] is None


def test_it_resumes_to_the_same_weights(metavib, interrupted, training, final, tmp_path):
    interrupted(*training("--target", "none"), after=2)
    status, _, err = metavib("train", "--out", tmp_path / "run")
    assert status == 0, err
    ours, theirs = (path / "model" / "model.safetensors" for path in (tmp_path / "run", final[0]))
    assert ours.read_bytes() == theirs.read_bytes()


def test_its_model_predicts_describes_itself_and_is_exported_and_served(metavib, final, tmp_path):
    run, folder, _ = final
    image = next((folder / "sketch" / "cat").iterdir())
    assert load(run)([image])[0].label in ("cat", "dog")
    status, out, _ = metavib("predict", run, image, "--json")
    assert status == 0
    assert json.loads(out)["label"] in ("cat", "dog")
    assert metavib("describe", run).status == 0
    status, out, _ = metavib("describe", run / "model", "--json")
    assert json.loads(out)["unseen_domain"] is None
    assert metavib("export", run, "--format", "torch-export", "--out", tmp_path / "exported").status == 0
    assert json.loads((tmp_path / "exported" / "torch-export.json").read_text())["unseen_domain"] is None


def test_its_server_says_that_nothing_was_held_out(final):
    from metavib.serving.http.answers import facts_of
    from metavib.serving.http.limits import Limits

    facts = facts_of({"sampled": load(final[0])}, Limits(), "1")
    assert facts.unseen_domain is None
    assert facts.checked_on == 8


def test_evaluate_has_nothing_to_measure_but_source_validation(metavib, refused, final):
    run, _, _ = final
    line = refused("evaluate", run)
    assert "nothing was held out" in line
    assert "--domain NAME" in line
    assert "art, cartoon, photo, sketch" in line
    status, out, err = metavib("evaluate", run, "--domain", "sketch", "--json")
    assert status == 0
    assert "measuring on its validation images" in err
    assert json.loads(out)["seen_in_training"] is True
    assert "--target" in refused("evaluate", run, "--target", "none")


def test_the_report_shows_what_it_has(metavib, final, tmp_path):
    run, _, held_out = final
    status, out, err = metavib("report", run, "-o", tmp_path / "alone.html", "--json")
    assert status == 0, err
    page = (tmp_path / "alone.html").read_text()
    assert "nothing was held out" in page
    assert "Classes on source validation" in page
    assert "Nothing was held out in these runs" in json.loads(out)["missing"]["confusion"]
    status, _, _ = metavib("report", run, held_out, "-o", tmp_path / "both.html")
    assert status == 0
    both = (tmp_path / "both.html").read_text()
    assert "Models of all domains" in both
    assert "Classes on the unseen domain" in both


def test_a_sweep_refuses_it(refused, folder, tmp_path):
    (tmp_path / "sweep.json").write_text(json.dumps({"dataset": str(folder), "targets": "none"}))
    assert "targets must name domains" in refused("sweep", tmp_path / "sweep.json")


def test_a_grid_may_hold_out_a_domain_and_nothing(metavib, folder, tmp_path):
    status, out, err = metavib(
        "train", folder, *ERM, "--target", "sketch,none", "--out", tmp_path / "g", "--json"
    )
    assert status == 0, err
    assert "Accuracy on the unseen domain" in err
    assert "Nothing was held out; accuracy on source validation" in err
    assert [run["unseen_domain"] for run in json.loads(out)["runs"]] == ["sketch", None]


def test_stacked_with_others_it_is_a_stack_of_its_own(metavib, folder, tmp_path):
    status, _, err = metavib(
        "train", folder, *ERM, "--target", "art,sketch,none", "--batch", "3", "--out", tmp_path / "g"
    )
    assert status == 0, err
    assert "2 runs are trained as one program" in err


def test_settings_are_chosen_by_leaving_out_every_domain_in_turn(metavib, folder, tmp_path):
    status, out, err = metavib(
        "train",
        folder,
        *ERM,
        "--out",
        tmp_path / "g",
        "--select",
        "leave-one-domain-out",
        "--set",
        "clip_norm=0,1",
    )
    assert status == 0, err
    assert "8 runs on source domains to choose by, then 1" in err
    assert "erm, nothing held out, seed 1" in out


# --- how many domains there are, and what they are called -------------------------------------------------------


def test_two_domains_are_enough_for_an_episode(metavib, make_folder, training, tmp_path):
    pair = make_folder(tmp_path / "pair", domains="photo sketch")
    status, _, err = metavib(*training("--target", "none", data=pair))
    assert status == 0, err


@pytest.mark.parametrize("algorithm", ["erm", "jigen"])
def test_one_domain_is_enough_where_domains_make_no_difference(metavib, make_folder, tmp_path, algorithm):
    one = make_folder(tmp_path / "one", domains="photo")
    status, _, err = metavib("train", one, *ERM, "--algorithm", algorithm, "--out", tmp_path / "run")
    assert status == 0, err
    assert load_model(tmp_path / "run", torch.device("cpu"))[1].source_domains == ("photo",)


def test_one_domain_is_refused_where_a_method_needs_two(refused, make_folder, training, tmp_path):
    one = make_folder(tmp_path / "one", domains="photo")
    line = refused(*training("--target", "none", data=one))
    assert "has 1 domain(s): photo; at least 2 source domains are needed" in line
    assert "--algorithm erm" in line
    assert not (tmp_path / "run").exists()


def test_two_domains_with_one_held_out_name_the_way_out(refused, make_folder, training, tmp_path):
    pair = make_folder(tmp_path / "pair", domains="photo sketch")
    assert "train on all 2 with --target none" in refused(*training(data=pair))


def test_a_domain_called_none_is_the_target(metavib, make_folder, training, tmp_path):
    images = make_folder(tmp_path / "named", domains="art none photo")
    status, out, _ = metavib(*training("--target", "none", "--json", data=images))
    assert status == 0
    assert json.loads(out)["unseen_domain"] == "none"
    (tmp_path / "all.json").write_text(json.dumps({"dataset": str(images), "target": None}))
    plain = [*ERM[:2], *ERM[4:]]  # without --target
    status, out, err = metavib(
        "train", "--config", tmp_path / "all.json", *plain, "--out", tmp_path / "b", "--json"
    )
    assert status == 0, err
    assert json.loads(out)["unseen_domain"] is None


def test_no_target_at_all_names_the_domains_and_none(refused, folder, tmp_path):
    line = refused("train", folder, "--out", tmp_path / "run")
    assert "name the domain to hold out, art, cartoon, photo, sketch, or none" in line


def test_the_oracle_has_nothing_to_peek_at(refused, training):
    assert "nothing is held out" in refused(*training("--target", "none", "--select", "oracle"))
