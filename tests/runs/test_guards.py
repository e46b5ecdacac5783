"""What keeps results honest: the unseen domain stays unseen, validation stays apart, no file is executed."""

import ast
import dataclasses
import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

import metavib
from metavib.data import transforms
from metavib.data.sources.catalog import open_dataset
from metavib.data.splits import split_domains
from metavib.runs.cross_validation import choose, question
from metavib.runs.one_run import ExecutionContext, open_sources, run_experiment
from metavib.training.experiment import experiment_from

CPU = torch.device("cpu")
AUGMENTED = {"flip": 0.5, "smallest_crop": 0.7, "colour": 0.3, "grey": 0.1}


@pytest.fixture
def experiment(folder):
    values = {"dataset": str(folder), "target": "sketch", "seed": 1, "backbone": "digits", "weights": "none"}
    small = {"steps": 4, "images_per_domain": 8, "repeats": 2, "validations": 2}
    return experiment_from(values, AUGMENTED | small | {"latent_width": 16, "latent_draws": 2})


def with_training(experiment, **changes):
    return dataclasses.replace(experiment, training=dataclasses.replace(experiment.training, **changes))


@pytest.fixture
def opened_files():
    """The paths of all files that this process opens, in order, as the interpreter itself reports them."""
    events: list[str] = []
    recording = [True]

    def hook(event, arguments):
        if recording and event == "open" and isinstance(arguments[0], str | Path):
            events.append(str(arguments[0]))

    sys.addaudithook(hook)
    yield events
    recording.clear()  # a hook cannot be removed


@pytest.mark.parametrize(
    "changes", [{}, {"selection": "last"}, {"average": "ema"}, {"average": "swad"}], ids=str
)
def test_no_target_image_is_opened_before_training_is_done(
    experiment, folder, opened_files, tmp_path, monkeypatch, changes
):
    experiment = with_training(experiment, **changes)
    monkeypatch.setenv("METAVIB_CACHE", str(tmp_path / "empty-cache"))

    def show(progress):
        opened_files.append(f"step {progress.step}")

    run_experiment(experiment, tmp_path / "run", ExecutionContext(CPU, show=show))
    last_step = opened_files.index("step 4")
    of_target = [i for i, path in enumerate(opened_files) if path.startswith(str(folder / "sketch"))]
    of_sources = [i for i, path in enumerate(opened_files) if path.startswith(str(folder / "photo"))]
    assert len(of_target) >= 8
    assert min(of_target) > last_step
    assert max(of_sources) < opened_files.index("step 0")


def test_the_oracle_opens_the_target_before_training_and_says_so(
    experiment, folder, opened_files, tmp_path, monkeypatch
):
    monkeypatch.setenv("METAVIB_CACHE", str(tmp_path / "empty-cache"))
    said = []

    def show(progress):
        opened_files.append(f"step {progress.step}")

    experiment = with_training(experiment, selection="oracle")
    run_experiment(experiment, tmp_path / "run", ExecutionContext(CPU, show=show, say=said.append))
    of_target = [i for i, path in enumerate(opened_files) if path.startswith(str(folder / "sketch"))]
    assert max(of_target) < opened_files.index("step 0")
    assert "the oracle selects by 'sketch' itself: its numbers are not a fair comparison." in said


def test_no_image_of_a_domain_that_is_left_out_is_ever_opened(
    experiment, folder, opened_files, tmp_path, monkeypatch
):
    monkeypatch.setenv("METAVIB_CACHE", str(tmp_path / "empty-cache"))
    experiment = dataclasses.replace(experiment, without=("cartoon",))
    results = run_experiment(experiment, tmp_path / "run", ExecutionContext(CPU))
    by_domain = {
        domain: sum(path.startswith(str(folder / domain)) for path in opened_files)
        for domain in ("art", "cartoon", "photo", "sketch")
    }
    assert by_domain.pop("cartoon") == 0
    assert min(by_domain.values()) >= 8  # all images of the others are
    assert results.without == ("cartoon",)
    assert results.data["source_domains"] == ["art", "photo"]


def test_settings_are_chosen_without_opening_an_image_of_the_target(
    cell, folder, opened_files, tmp_path, monkeypatch
):
    monkeypatch.setenv("METAVIB_CACHE", str(tmp_path / "empty-cache"))
    asked = question([cell(steps=1, learning_rate=rate) for rate in (0.1, 0.2)], None)
    (choice,) = choose([asked], ExecutionContext(CPU), batch=None)
    assert choice.chosen in asked.candidates
    by_domain = {
        domain: sum(path.startswith(str(folder / domain)) for path in opened_files)
        for domain in ("art", "cartoon", "photo", "sketch")
    }
    assert by_domain.pop("sketch") == 0
    assert min(by_domain.values()) >= 8


def test_only_training_images_are_augmented(experiment, tmp_path, monkeypatch):
    opened, augmented = [], []
    augment = transforms.augment

    def open_and_keep(*arguments, **options):
        opened.append(open_sources(*arguments, **options))
        return opened[-1]

    def augment_and_keep(images, settings, draws):
        augmented.append(images)
        return augment(images, settings, draws)

    monkeypatch.setattr("metavib.runs.one_run.open_sources", open_and_keep)
    monkeypatch.setattr(transforms, "augment", augment_and_keep)
    run_experiment(experiment, tmp_path / "run", ExecutionContext(CPU))

    def pixels(images):
        return {image.numpy().tobytes() for image in images}

    store = opened[0].train.store
    trained = pixels(store.gather(opened[0].train.rows) / 255.0)
    validated = pixels(store.gather(opened[0].validation.rows) / 255.0)
    assert len(augmented) == 1 + experiment.training.steps  # one to begin with
    assert pixels(torch.cat(augmented)) <= trained
    assert validated
    assert not validated & trained


def test_validation_batches_do_not_depend_on_the_augmentation(folder, tmp_path, monkeypatch):
    seen = {}
    for name, flip in (("plain", 0.0), ("flipped", 1.0)):
        values = {"dataset": str(folder), "target": "sketch", "seed": 1, "backbone": "digits"}
        changes = {"steps": 1, "images_per_domain": 8, "repeats": 1, "flip": flip, "latent_width": 16}
        with monkeypatch.context() as patch:

            def open_and_keep(*arguments, name=name, **options):
                sources = open_sources(*arguments, **options)
                seen[name] = sources.validation
                return sources

            patch.setattr("metavib.runs.one_run.open_sources", open_and_keep)
            run_experiment(experiment_from(values, changes), tmp_path / name, ExecutionContext(CPU))
    plain, flipped = (torch.cat([batch.images for batch in seen[name].batches()]) for name in seen)
    assert torch.equal(plain, flipped)


@pytest.fixture
def planted(folder, experiment):
    """Copies planted so that one validation image and two test images have the bytes of source images."""
    dataset = open_dataset(str(folder), data_root=None, protocol=None, seed=1)
    share = experiment.training.validation_share
    split = split_domains(dataset, "sketch", seed=experiment.seed, validation_share=share)

    def names(domain, positions):
        return [folder / dataset.listing(domain).names[position] for position in positions]

    trained, validated = names("photo", split.train["photo"]), names("photo", split.validation["photo"])
    tested = names("sketch", split.tested)
    shutil.copy(trained[0], validated[0])
    shutil.copy(trained[1], tested[0])
    shutil.copy(validated[1], tested[1])
    return split


def test_copies_are_left_out_of_validation_and_test_and_counted(experiment, planted, tmp_path):
    data = run_experiment(experiment, tmp_path / "run", ExecutionContext(CPU)).data
    assert data["validation_images_dropped_as_copies"] == 1
    assert data["target"]["test_images_left_out_as_copies"] == 2
    assert data["target"]["test_images"] == 6
    recorded = json.loads((tmp_path / "run" / "results.json").read_text())
    assert recorded["data"] == data
    assert recorded["unseen"]["images"] == 6
    assert recorded["source_validation"]["images"] == data["validation_images"] == 5


def test_measuring_again_leaves_out_the_same_copies(metavib, experiment, planted, tmp_path):
    results = run_experiment(experiment, tmp_path / "run", ExecutionContext(CPU))
    status, out, _ = metavib("evaluate", tmp_path / "run", "--json")
    assert status == 0
    again = json.loads(out)
    assert again["data"]["target"] == results.data["target"]
    assert again["measured"]["accuracy"]["mean"] == pytest.approx(results.unseen.mean("accuracy"))


def test_no_two_roles_share_a_file_or_the_bytes_of_one(experiment, planted, folder):
    dataset = open_dataset(str(folder), data_root=None, protocol=None, seed=1)
    named = [
        *(dataset.listing(d).names[i] for d in planted.train for i in planted.train[d]),
        *(dataset.listing(d).names[i] for d in planted.validation for i in planted.validation[d]),
        *(dataset.listing("sketch").names[i] for i in planted.tested),
    ]
    assert len(named) == len(set(named)) == len(list(folder.rglob("*.png")))


def test_the_split_is_recorded_wherever_a_number_is(finished):
    split = json.loads((finished.run / "experiment.json").read_text())["data"]["split"]
    assert len(split) == 16
    assert json.loads((finished.run / "results.json").read_text())["split"] == split
    assert json.loads((finished.run / "model" / "config.json").read_text())["split"] == split
    log = [json.loads(line) for line in (finished.run / "metrics.jsonl").read_text().splitlines()]
    assert len(log) == 3
    assert all(record["split"] == split for record in log)


# --- no file is ever executed -----------------------------------------------------------------------------

SOURCES = sorted(Path(metavib.__file__).parent.rglob("*.py"))
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load"}
FORBIDDEN_CALLS |= {
    f"{module}.{name}" for module in ("pickle", "marshal", "joblib") for name in ("load", "loads")
}
FORBIDDEN_OPTIONS = {("weights_only", False), ("allow_pickle", True), ("shell", True)}


def unsafe_calls(source):
    """The calls in a source text that would execute what a file holds."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            options = {option.arg: option.value for option in node.keywords}
            constants = {(arg, v.value) for arg, v in options.items() if isinstance(v, ast.Constant)}
            if name in FORBIDDEN_CALLS or constants & FORBIDDEN_OPTIONS:
                yield ast.unparse(node)
            if name == "torch.load" and ("weights_only", True) not in constants:
                yield ast.unparse(node)
            if name == "YAML" and ("typ", "safe") not in constants:
                yield ast.unparse(node)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_source_file_loads_anything_that_could_run(path):
    assert list(unsafe_calls(path.read_text())) == []


@pytest.mark.parametrize(
    "source",
    [
        "pickle.load(file)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text)",
        "YAML().load(text)",
        "eval(text)",
    ],
)
def test_the_guard_itself_sees_what_it_looks_for(source):
    assert list(unsafe_calls(source))
