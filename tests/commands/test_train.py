"""`metavib train`: what it prints, writes and reads back."""

import json

from metavib.experiment import experiment_from


def test_the_results_are_printed_with_what_they_depend_on(metavib, training):
    status, out, err = metavib(*training())
    assert (status, out) == (0, "")
    for words in ("unseen domain 'sketch', 8 images", "class averaged accuracy", "nll", "ece", "brier"):
        assert words in err
    for words in (
        "2 repeats of 2 classifier draws x 2 latent draws",
        "source-validation",
        "seed 1",
        "metavib predict",
    ):
        assert words in err


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
    assert {path.name for path in (finished.run / "model").iterdir()} == {"config.json", "model.safetensors"}
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


def test_a_run_can_be_named_by_its_place_alone(interrupted, metavib, training, tmp_path):
    interrupted(*training(), after=1)
    status, out, _ = metavib("train", "--out", tmp_path / "run", "--json")
    assert status == 0
    assert json.loads(out)["unseen_domain"] == "sketch"


def test_stopping_is_said_with_json_too(interrupted, training):
    status, out, err = interrupted(*training("--json"), after=1)
    assert (status, out) == (130, "")
    assert "To go on: metavib train --out" in err


def test_what_the_resume_command_needs_is_in_it(interrupted, training, folder, tmp_path):
    (folder / "photo" / "cat" / "bad.png").write_bytes(b"")
    flags = ("--skip-bad", "--device", "cpu", "--data", tmp_path)
    err = interrupted(*training(*flags), after=1).err
    assert f"--data {tmp_path} --device cpu --skip-bad" in err.splitlines()[-1]


def test_a_class_that_one_source_lacks_breaks_nothing(metavib, training, folder):
    for path in (folder / "photo" / "cat").iterdir():
        path.unlink()
    assert metavib(*training()).status == 0
