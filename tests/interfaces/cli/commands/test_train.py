"""`metavib train`: what it prints, writes and reads back."""

import json
import os
import re

import pytest
import torch

from metavib.core import cores
from metavib.interfaces.cli.outcome import selected_by
from metavib.interfaces.cli.training import one_run
from metavib.interfaces.cli.training.experiments import usual_place
from metavib.runs import one_run as runner
from metavib.runs.capacity import Estimate
from metavib.training.experiment import experiment_from
from metavib.training.step import Program


def test_classes_of_one_source_domain_alone_are_named(folder, metavib, training, tmp_path):
    (folder / "art" / "dog").rename(folder / "art" / "emu")
    status, _, err = metavib(*training())
    assert status == 0
    assert json.loads((tmp_path / "run/results.json").read_text())["data"]["lone_classes"] == {"emu": "art"}
    assert "class 'emu' is in one source domain alone, 'art': what is learnt of it comes from there" in err


def test_the_results_are_printed_with_what_they_depend_on(metavib, training):
    status, out, err = metavib(*training())
    assert status == 0
    assert "training 3/3" in err
    for words in ("unseen domain 'sketch', 8 images", "class averaged accuracy", "nll", "ece", "brier"):
        assert words in out
        assert words not in err
    for words in (
        "2 repeats of 2 classifier draws x 2 latent draws",
        "source-validation",
        "seed 1",
        "metavib predict",
    ):
        assert words in out


def test_time_and_memory_are_told_before_the_first_step(metavib, training):
    _, _, err = metavib(*training())
    lines = err.splitlines()
    (told,) = [at for at, line in enumerate(lines) if re.search(r"^About \d+ s to go and \d+\.\d GB", line)]
    (first,) = [at for at, line in enumerate(lines) if line.startswith("training 3/3")]
    assert told < first


def test_a_probe_leaves_the_run_as_it_was(metavib, training, tmp_path, monkeypatch):
    metavib(*training(out=tmp_path / "probed"))
    monkeypatch.setattr(one_run, "estimate_of", lambda opened: Estimate(1, 0, 1.0, 1.0))
    metavib(*training(out=tmp_path / "not"))
    one, other = (
        (tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("probed", "not")
    )
    assert one == other


@pytest.mark.parametrize("threads", ["0", "-2", "1000000"])
@pytest.mark.parametrize("command", ["train", "predict", "evaluate", "sweep", "reproduce", "serve", "demo"])
def test_a_number_of_threads_that_is_none_is_refused(refused, command, threads):
    given = {"predict": ["model", "file"], "demo": []}.get(command, ["nothing"])
    assert "--threads" in refused(command, *given, "--threads", threads)


def test_a_run_goes_on_with_the_threads_that_it_began_with(
    metavib, training, interrupted, tmp_path, monkeypatch
):
    seen = []
    monkeypatch.setattr(cores, "allowed", lambda root=None: 4)
    monkeypatch.setattr(runner, "allowed", lambda: 4)
    step = Program.step

    def watched(self):
        seen.append(torch.get_num_threads())
        step(self)

    monkeypatch.setattr(Program, "step", watched)
    interrupted(*training("--threads", 2), after=1)
    assert json.loads((tmp_path / "run" / "experiment.json").read_text())["threads"] == 2
    assert set(seen) == {2}
    seen.clear()
    stopped = interrupted(*training(), after=1)
    assert seen[-1] == 2  # and not the one thread of this process
    assert "round" not in stopped.err
    seen.clear()
    asked = metavib(*training("--threads", 3))
    assert seen[-1] == 3
    assert "began with 2 threads and goes on with 3" in asked.err


def test_the_command_that_goes_on_has_the_threads_that_were_asked_for(training, interrupted):
    assert "--threads 1" in interrupted(*training("--threads", 1), after=1).err


def test_json_is_what_stands_in_results(metavib, training, tmp_path):
    _, out, _ = metavib(*training("--json"))
    printed = json.loads(out)
    assert printed.pop("run") == str(tmp_path / "run")
    assert printed == json.loads((tmp_path / "run" / "results.json").read_text())
    assert printed["classes"] == ["cat", "dog"]
    assert printed["unseen_domain"] == "sketch"
    assert printed["unseen"]["images"] == 8
    assert printed["source_validation"]["images"] == 6
    assert printed["data"]["train_images"] == 18
    assert printed["data"]["source_domains"] == ["art", "cartoon", "photo"]
    assert 0 <= printed["unseen"]["accuracy"]["mean"] <= 1


def test_a_run_directory_has_what_the_contract_names(finished):
    names = {path.name for path in finished.run.iterdir() if not path.name.startswith(".")}
    assert names == {
        "experiment.json",
        "config.yaml",
        "metrics.jsonl",
        "checkpoints",
        "model",
        "results.json",
    }
    assert {path.name for path in (finished.run / "model").iterdir()} == {
        "config.json",
        "model.safetensors",
        "README.md",
    }
    record = json.loads((finished.run / "experiment.json").read_text())
    assert record["versions"]["torch"]
    assert record["identity"] == experiment_from(record["experiment"]).identity()


def test_the_log_has_a_line_for_each_step(finished):
    log = [json.loads(line) for line in (finished.run / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in log] == [1, 2, 3]
    assert all({"classification", "bottleneck", "learning_rate"} <= record.keys() for record in log)
    assert "validation_accuracy" in log[-1]


def test_the_configuration_that_a_run_wrote_is_the_same_experiment(metavib, finished, tmp_path):
    for name in ("config.yaml", "experiment.json"):
        again = tmp_path / name
        assert metavib("train", "--config", finished.run / name, "--out", again).status == 0
        records = [json.loads((run / "experiment.json").read_text()) for run in (finished.run, again)]
        assert records[0]["identity"] == records[1]["identity"]
        models = [(run / "model" / "model.safetensors").read_bytes() for run in (finished.run, again)]
        assert models[0] == models[1]


def test_flags_override_the_configuration_and_set_comes_last(interrupted, folder, training, tmp_path):
    text = f"dataset: {folder}\ntarget: photo\nseed: 5\ntraining:\n  steps: 9\nmethod:\n  beta: 0.5\n"
    (tmp_path / "mine.yaml").write_text(text)
    command = ["train", "--config", tmp_path / "mine.yaml", "--out", tmp_path / "mine", *training()[4:]]
    command = [word for word in command if word not in ("--seed", "1")]
    interrupted(*command, "--set", "method.beta=0.25", after=1)
    experiment = json.loads((tmp_path / "mine" / "experiment.json").read_text())["experiment"]
    assert experiment["seed"] == 5
    assert experiment["target"] == "sketch"
    assert experiment["training"]["steps"] == 3
    assert experiment["method"]["beta"] == 0.25


def test_json_configurations_are_read_too(interrupted, folder, training, tmp_path):
    (tmp_path / "mine.json").write_text(json.dumps({"method": {"beta": 0.5}}))
    interrupted(*training("--config", tmp_path / "mine.json"), after=1)
    experiment = json.loads((tmp_path / "run" / "experiment.json").read_text())["experiment"]
    assert experiment["method"]["beta"] == 0.5


def test_two_runs_of_one_experiment_are_the_same_and_another_seed_is_not(metavib, training, tmp_path):
    for name, seed in (("first", 1), ("second", 1), ("third", 2)):
        assert metavib(*training("--seed", seed, out=tmp_path / name)).status == 0
    first, second, third = (
        (tmp_path / name / "model" / "model.safetensors").read_bytes()
        for name in ("first", "second", "third")
    )
    assert first == second
    assert first != third


def test_without_a_place_the_run_goes_below_runs(metavib, training, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = training()
    position = command.index("--out")
    del command[position : position + 2]
    assert metavib(*command).status == 0
    assert (tmp_path / "runs" / "images-sketch-metavib-seed1" / "results.json").exists()


@pytest.mark.parametrize(
    ("average", "without", "name"),
    [
        ("none", "", "digits-75-erm-seed1"),
        ("swad", "", "digits-75-erm-swad-seed1"),
        ("none", "30, 0 b,a/b", "digits-75-erm-seed1-without-0_b-30-a_b"),
        ("ema", "0", "digits-75-erm-ema-seed1-without-0"),
    ],
)
def test_the_usual_place_names_averaged_weights_and_domains_left_out(average, without, name):
    values = {"dataset": "/some/digits", "target": "75", "algorithm": "erm", "seed": 1, "without": without}
    assert str(usual_place(experiment_from(values, {"average": average}))) == f"runs/{name}"


def test_a_domain_can_be_left_out_and_weights_averaged(metavib, training, tmp_path):
    flags = ("--without", "photo", "--average", "swad", "--steps", 6, "--set", "validations=6", "--json")
    status, out, err = metavib(*training(*flags))
    assert status == 0
    results = json.loads(out)
    assert (results["without"], results["average"]) == (["photo"], "swad")
    assert results["data"]["source_domains"] == ["art", "cartoon"]
    assert "; weights averaged by swad; protocol: folder" in err
    described = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert described["source_domains"] == ["art", "cartoon"]
    # The recorded experiment is the same one again, so that the run is known to be finished.
    assert "is finished already" in metavib("train", "--out", tmp_path / "run").err


@pytest.mark.parametrize("text", ["without: [photo, art]\n", "without: art,photo\n"])
def test_a_configuration_names_the_domains_to_leave_out_and_a_flag_overrides_it(
    interrupted, make_folder, training, tmp_path, text
):
    folder = make_folder(tmp_path / "many", domains="art cartoon clipart photo sketch")
    (tmp_path / "mine.yaml").write_text(text)
    for flags, expected in (((), ["art", "photo"]), (("--without", "clipart"), ["clipart"])):
        out = tmp_path / "-".join(expected)
        interrupted(*training("--config", tmp_path / "mine.yaml", *flags, data=folder, out=out), after=1)
        experiment = json.loads((out / "experiment.json").read_text())["experiment"]
        assert experiment["without"] == expected


def test_a_run_that_the_oracle_selected_says_that_it_peeks(metavib, training, tmp_path):
    status, out, err = metavib(*training("--select", "oracle"))
    assert status == 0
    assert "the oracle selects by 'sketch' itself: its numbers are not a fair comparison." in err
    assert "; selected by oracle (it peeks at the unseen domain); protocol" in out
    assert json.loads((tmp_path / "run" / "results.json").read_text())["selection"] == "oracle"


@pytest.mark.parametrize(
    ("selection", "average", "words"),
    [
        ("source-validation", "none", "selected by source-validation"),
        ("oracle", "none", "selected by oracle (it peeks at the unseen domain)"),
        ("last", "ema", "selected by last, weights averaged by ema"),
        ("source-validation", "swad", "weights averaged by swad"),  # the rule decides nothing
    ],
)
def test_how_a_model_was_chosen_is_said_in_words(selection, average, words):
    assert selected_by(selection, average) == words


def test_a_run_can_be_named_by_its_place_alone(interrupted, metavib, training, tmp_path):
    interrupted(*training(), after=1)
    status, out, _ = metavib("train", "--out", tmp_path / "run", "--json")
    assert status == 0
    assert json.loads(out)["unseen_domain"] == "sketch"


def test_stopping_is_said_with_json_too(interrupted, training):
    status, out, err = interrupted(*training("--json"), after=1)
    assert (status, out) == (130, "")
    assert "To go on: metavib train --json --out" in err


def test_what_the_resume_command_needs_is_in_it(interrupted, training, folder, tmp_path):
    (folder / "photo" / "cat" / "bad.png").write_bytes(b"")
    flags = ("--skip-bad", "--device", "cpu", "--data", tmp_path, "--checkpoint-seconds", "7")
    err = interrupted(*training(*flags), after=1).err
    assert err.endswith(
        f"To go on: metavib train --out {tmp_path / 'run'} --skip-bad --checkpoint-seconds 7.0 --data {tmp_path} "
        "--device cpu\n"
    )


def test_a_class_that_one_source_lacks_breaks_nothing(metavib, training, folder):
    for path in (folder / "photo" / "cat").iterdir():
        path.unlink()
    assert metavib(*training()).status == 0


def test_a_limit_of_memory_changes_where_the_images_are_and_nothing_else(metavib, training, tmp_path):
    weights = {}
    for name, more in (("limited", ["--memory", "1MiB"]), ("unlimited", [])):
        status, _, err = metavib(*training(*more, out=tmp_path / name))
        assert status == 0
        assert ("do not fit into memory" in err) == (name == "limited")
        weights[name] = (tmp_path / name / "model" / "model.safetensors").read_bytes()
    assert weights["limited"] == weights["unlimited"]
    assert "METAVIB_MEMORY" not in os.environ


@pytest.mark.parametrize("text", ["much", "1,5GB", "0", ""])
def test_an_amount_of_memory_that_is_none_is_named(refused, training, tmp_path, text):
    assert "not an amount of memory" in refused(*training("--memory", text))
    assert not (tmp_path / "run").exists()


def test_a_stopped_run_says_its_limit_of_memory_again(interrupted, training):
    assert "--memory 1MiB" in interrupted(*training("--memory", "1MiB"), after=1).err
