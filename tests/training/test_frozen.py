"""Runs whose backbone is kept: they learn on its features, and leave a whole model behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import metavib as package
from metavib.algorithms import ALGORITHMS
from metavib.core.errors import UserError
from metavib.data import feature_cache
from metavib.data.store.storage import ImageStore
from metavib.nn.frozen import FixedFeatures
from metavib.nn.networks import build_backbone
from metavib.runs.grid import run_grid
from metavib.runs.one_run import ExecutionContext, open_run, run_experiment
from metavib.training import frozen as frozen_module
from metavib.training.experiment import experiment_from
from metavib.training.loop import Stopped
from metavib.training.run_directory import RunDirectory

CPU = torch.device("cpu")
REFUSED = {"feature_critic", "epi_fcr", "jigen", "d_sam", "dsn", "mtae"}
CAN = [name for name in ALGORITHMS if name not in REFUSED]


@pytest.fixture
def weights(tmp_path: Path) -> str:
    """A file with weights of the digit network."""
    torch.manual_seed(3)
    save_file(build_backbone("digits").state_dict(), tmp_path / "digits.safetensors")
    return str(tmp_path / "digits.safetensors")


@pytest.fixture
def experiment(folder: Path, weights: str) -> Any:
    def make(algorithm: str = "erm", *, seed: int = 1, target: str | None = "sketch", **changes: Any) -> Any:
        values = {"dataset": str(folder), "target": target, "seed": seed, "algorithm": algorithm}
        values |= {"backbone": "digits", "weights": weights}
        small: dict[str, Any] = {"steps": 4, "images_per_domain": 8, "validations": 2, "repeats": 2}
        small |= {"frozen": True}
        if algorithm in ("baseline", "vib", "metavib"):
            small |= {"latent_width": 16, "latent_draws": 2, "classifier_draws": 2}
        return experiment_from(values, small | changes)

    return make


def model_of(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


@pytest.mark.parametrize("algorithm", CAN)
def test_the_model_is_a_whole_one_and_answers_as_it_was_measured(
    algorithm: str, experiment: Any, tmp_path: Path, metavib: Any, weights: str
) -> None:
    run = tmp_path / "run"
    results = run_experiment(experiment(algorithm), run, ExecutionContext(CPU))
    if algorithm != "low_rank":  # which keeps its weights in factors
        saved = model_of(run)
        for name, value in load_file(weights).items():
            assert torch.equal(saved[f"backbone.{name}"], value)
    status, out, _ = metavib("evaluate", run, "--json", "--repeats", 2)
    assert status == 0
    again = json.loads(out)["measured"]
    assert results.unseen is not None
    for measure in ("accuracy", "brier"):
        assert again[measure]["mean"] == pytest.approx(results.unseen.mean(measure), rel=1e-4)


@pytest.mark.parametrize("algorithm", sorted(REFUSED))
def test_what_needs_the_backbone_says_why(algorithm: str, experiment: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{algorithm} .*: it cannot learn with --freeze"):
        run_experiment(experiment(algorithm), tmp_path / "run", ExecutionContext(CPU))
    assert not (tmp_path / "run").exists()


def test_d_sam_learns_on_the_features_alone(experiment: Any, tmp_path: Path) -> None:
    assert run_experiment(experiment("d_sam", stages=0), tmp_path / "run", ExecutionContext(CPU)) is not None
    package.load(tmp_path / "run", device="cpu")


@pytest.mark.parametrize("algorithm", ["erm", "metavib", "crossgrad"])
def test_resuming_equals_never_stopping(algorithm: str, experiment: Any, tmp_path: Path) -> None:
    made = experiment(algorithm, views=2, flip=0.5, smallest_crop=0.7, steps=6)
    run_experiment(made, tmp_path / "unstopped", ExecutionContext(CPU))
    stopped, steps = tmp_path / "stopped", iter(range(3))

    def stop() -> bool:  # after some steps; the features are computed before there is a run
        return (stopped / "experiment.json").exists() and next(steps, None) is None

    with pytest.raises(Stopped, match="after step"):
        run_experiment(made, stopped, ExecutionContext(CPU, stop=stop))
    run_experiment(made, stopped, ExecutionContext(CPU))
    for name in ("model/model.safetensors", "metrics.jsonl"):
        assert (stopped / name).read_bytes() == (tmp_path / "unstopped" / name).read_bytes()


def test_stopped_while_features_are_computed_it_goes_on_there(
    experiment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METAVIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(feature_cache, "PIECE", 4)
    monkeypatch.setattr(ImageStore, "batch_size", 4)
    passed: list[int] = []
    original = frozen_module.FrozenNetwork._of_pixels

    def counted(self: Any, pixels: Any, numbers: Any, view: int) -> Any:
        passed.append(len(pixels))
        return original(self, pixels, numbers, view)

    monkeypatch.setattr(frozen_module.FrozenNetwork, "_of_pixels", counted)
    told: list[tuple[int, int]] = []
    context = ExecutionContext(CPU, stop=lambda: len(passed) >= 3, computing=lambda *at: told.append(at))
    with pytest.raises(Stopped, match="while features were computed"):
        run_experiment(experiment(), tmp_path / "run", context)
    assert not (tmp_path / "run").exists()
    assert told == [(4, 24), (8, 24), (12, 24)]
    opened = open_run(experiment(), RunDirectory(tmp_path / "run"), ExecutionContext(CPU))
    assert sum(passed) == 24  # three domains of eight images, each once
    assert opened.frozen is not None
    open_run(experiment("metavib", seed=2), RunDirectory(tmp_path / "other"), ExecutionContext(CPU))
    assert sum(passed) == 24  # another method and another seed take the same features
    open_run(experiment(views=2, flip=0.5), RunDirectory(tmp_path / "other"), ExecutionContext(CPU))
    assert sum(passed) == 48  # the image itself is there; a second view is new
    open_run(experiment(views=2, flip=0.2), RunDirectory(tmp_path / "other"), ExecutionContext(CPU))
    assert sum(passed) == 72


def test_other_weights_have_other_features(experiment: Any, tmp_path: Path, weights: str) -> None:
    def features() -> np.ndarray:
        opened = open_run(experiment(), RunDirectory(tmp_path / "run"), ExecutionContext(CPU))
        assert isinstance(opened.run.algorithm.backbone, FixedFeatures)
        return np.array(opened.run.sources.train.store.parts[0])

    first = features()
    torch.manual_seed(4)
    save_file(build_backbone("digits").state_dict(), weights)
    assert not np.allclose(first, features())


def test_features_are_those_of_the_network_and_views_those_of_augmented_images(
    experiment: Any, tmp_path: Path
) -> None:
    plain = open_run(experiment(frozen=False), RunDirectory(tmp_path / "run"), ExecutionContext(CPU))
    opened = open_run(
        experiment(views=3, flip=1.0, smallest_crop=1.0, colour=0.0, grey=0.0),
        RunDirectory(tmp_path / "run"),
        ExecutionContext(CPU),
    )
    images, store = plain.run.sources.train.store, opened.run.sources.train.store
    assert len(store) == 3 * len(images)
    pixels = plain.run.sources.train.preprocessing(images.tensor)
    with torch.no_grad():
        itself, mirrored = (plain.run.algorithm.backbone(x) for x in (pixels, pixels.flip(3)))
    found = store.tensor.flatten(1).unflatten(0, (3, -1))
    torch.testing.assert_close(found[0], itself)
    for view in found[1:]:
        torch.testing.assert_close(view, mirrored, rtol=1e-3, atol=1e-3)  # sampled between pixels
    # Every view of a training image is drawn, with its label; validation sees images as they are.
    train, expected = opened.run.sources.train, plain.run.sources.train
    assert torch.equal(train.counts, 3 * expected.counts)
    label = dict(zip(expected.rows.tolist(), expected.labels.tolist(), strict=True))
    assert all(
        label[row % len(images)] == own
        for row, own in zip(train.rows.tolist(), train.labels.tolist(), strict=True)
    )
    assert torch.equal(opened.run.sources.validation.rows, plain.run.sources.validation.rows)


def test_stacked_runs_come_to_what_they_come_to_alone(experiment: Any, tmp_path: Path) -> None:
    from metavib.runs.cells import Cell

    made = [experiment(seed=seed, target=target) for seed, target in ((1, "sketch"), (2, "photo"))]
    cells = [Cell(one, tmp_path / "stacked" / str(number)) for number, one in enumerate(made)]
    done = run_grid(cells, ExecutionContext(CPU), batch=2)
    for number, one in enumerate(made):
        alone = run_experiment(one, tmp_path / "alone" / str(number), ExecutionContext(CPU))
        stacked = done[number].results
        assert alone is not None
        assert stacked is not None
        assert stacked.unseen == alone.unseen
        for name, value in model_of(tmp_path / "alone" / str(number)).items():
            torch.testing.assert_close(model_of(cells[number].out)[name], value)


def test_nothing_held_out_the_oracle_and_the_information_plane(experiment: Any, tmp_path: Path) -> None:
    held = run_experiment(experiment(target=None), tmp_path / "all", ExecutionContext(CPU))
    oracle = run_experiment(experiment(selection="oracle"), tmp_path / "oracle", ExecutionContext(CPU))
    assert held is not None
    assert held.unseen is None
    assert oracle is not None
    run_experiment(experiment("metavib", record_information=2), tmp_path / "plane", ExecutionContext(CPU))
    assert (tmp_path / "plane" / "information.jsonl").exists()


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("algorithm", ["erm", "metavib", "mldg", "epi_fcr", "crossgrad"])
def test_first_stages_keep_their_weights_and_the_rest_is_trained(
    algorithm: str, stages: int, experiment: Any, tmp_path: Path, weights: str
) -> None:
    made = experiment(algorithm, frozen=False, frozen_stages=stages, weight_decay=0.1)
    run_experiment(made, tmp_path / "run", ExecutionContext(CPU))
    saved = model_of(tmp_path / "run")
    for name, value in load_file(weights).items():
        kept = name.startswith(("convolution_1", "convolution_2")[:stages])
        assert torch.equal(saved[f"backbone.{name}"], value) == kept, name
    package.load(tmp_path / "run", device="cpu")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--freeze", "--weights", "none"], "random weights (--weights none)"),
        (["--freeze", "stages=2", "--weights", "none"], "random weights (--weights none)"),
        (["--freeze", "stages=7"], "stages=7 cannot be frozen: the network has 2 stages"),
        (["--freeze", "stages=0"], "stages=N with N from 1"),
        (["--freeze", "pacs"], "not 'pacs'. Give the dataset before it"),
        (["--freeze", "--set", "frozen_stages=1"], "leave one of them out"),
        (["--set", "views=4"], "views = 4 is of a frozen backbone"),
        (["--freeze", "--set", "views=4", "--set", "smallest_crop=1"], "nothing changes the images"),
        (["--freeze", "--set", "views=0"], "views must be"),
        (["--freeze", "stages=1", "--algorithm", "low_rank"], "low_rank factors the weights"),
    ],
)
def test_what_cannot_be_frozen_is_refused_in_one_line(
    flags: list[str], message: str, folder: Path, refused: Any, tmp_path: Path, weights: str
) -> None:
    given = [] if "--weights" in flags else ["--weights", weights]
    common = ["--target", "sketch", "--seed", 1, "--steps", 2, "--backbone", "digits", *given]
    for name in ("flip", "colour", "grey"):
        common += ["--set", f"{name}=0"]
    assert message in refused("train", folder, "--out", tmp_path / "run", *common, *flags)
    assert not (tmp_path / "run").exists()


def test_the_command_freezes_and_goes_on_by_its_directory_alone(
    training: Any, metavib: Any, tmp_path: Path, weights: str
) -> None:
    status, _, err = metavib(*training("--freeze", "--weights", weights, "--set", "views=2"))
    assert status == 0, err
    assert json.loads((tmp_path / "run" / "experiment.json").read_text())["experiment"]["training"]["frozen"]
    status, _, err = metavib("train", "--out", tmp_path / "run")
    assert status == 0
    assert "is finished already" in err


def test_the_command_says_how_to_go_on_where_features_were_being_computed(
    training: Any, interrupted: Any, tmp_path: Path, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METAVIB_CACHE", str(tmp_path / "cache"))
    outcome = interrupted(*training("--freeze", "--weights", weights), after=1)
    assert (
        "stopped while features were computed, and those that are there are kept. To go on: " in outcome.err
    )
    assert "--freeze all" in outcome.err
    assert "--seed 1" in outcome.err
    assert not (tmp_path / "run" / "experiment.json").exists()
