"""The network that is taken where none is named."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from metavib.interfaces.cli.parsing import parsers
from metavib.interfaces.cli.training.experiments import experiment_and_place, network_in_words
from metavib.training.at_hand import BEST_FIRST, SMALL_FIRST, network_at_hand
from metavib.training.experiment import Experiment

CPU, GPU = torch.device("cpu"), torch.device("cuda")
LITE0, LITE2 = "tf_efficientnet_lite0", "tf_efficientnet_lite2"


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts files of weights, which nobody opens here, into a data folder; the folder."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    monkeypatch.setenv("METAVIB_DATA", str(tmp_path / "data"))

    def put(*stems: str) -> Path:
        for stem in stems:
            path = tmp_path / "data" / "weights" / f"{stem}-imagenet.safetensors"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return tmp_path / "data"

    return put


def test_without_weights_there_is_none(weights: Callable[..., Path]) -> None:
    assert network_at_hand(weights(), CPU) is None


def test_on_a_gpu_the_best_and_on_a_cpu_the_one_that_costs_little(weights: Callable[..., Path]) -> None:
    pytest.importorskip("timm")
    root = weights("squeezenet1_0", "resnet50_v1", LITE0, LITE2)
    best, small = network_at_hand(root, GPU), network_at_hand(root, CPU)
    assert best is not None
    assert small is not None
    assert (best.name, small.name) == (f"timm:{LITE2}", f"timm:{LITE0}")
    assert small.weights == root / "weights" / f"{LITE0}-imagenet.safetensors"
    assert f"network: timm:{LITE0}, the best for this device whose weights are here" in small.in_words()


def test_without_timm_the_next_one_and_the_extra_is_named(
    weights: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    found = network_at_hand(weights("squeezenet1_0", LITE0), CPU)
    assert found is not None
    assert found.name == "squeezenet"
    assert "pip install 'metavib[timm]'" in found.in_words()
    found = network_at_hand(weights("resnet18"), CPU)
    assert found is not None
    assert found.name == "resnet18"


def test_a_download_of_torchvision_counts(weights: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    file = tmp_path / "hub" / "checkpoints" / "resnet18-f37072fd.pth"
    file.touch()
    found = network_at_hand(weights(), GPU)
    assert found is not None
    assert (found.name, found.weights) == ("resnet18", file)


def test_whatever_is_chosen_on_a_cpu_may_be_chosen_at_all() -> None:
    assert set(SMALL_FIRST) <= set(BEST_FIRST)


@pytest.fixture
def experiment_of(folder: Path) -> Callable[..., tuple[Experiment, str | None]]:
    """The experiment that a command means, and what is said about its network."""

    def parsed(*words: Any, dataset: Any = folder) -> tuple[Experiment, str | None]:
        line = [
            "train",
            str(dataset),
            "--target",
            "sketch",
            "--seed",
            "0",
            "--device",
            "cpu",
            *map(str, words),
        ]
        arguments = parsers(["train"])[0].parse_args(line)
        experiment, _ = experiment_and_place(arguments)
        return experiment, network_in_words(arguments, experiment)

    return parsed


def test_a_folder_is_trained_with_the_network_at_hand(
    weights: Callable[..., Path], experiment_of: Any
) -> None:
    weights("resnet18", "squeezenet1_0")
    experiment, words = experiment_of()
    assert (experiment.backbone, experiment.weights) == ("resnet18", "imagenet")
    assert words.startswith("network: resnet18, the best")


@pytest.mark.parametrize(
    ("words", "backbone"),
    [
        (["--backbone", "squeezenet"], "squeezenet"),
        (["--weights", "none"], "squeezenet"),
        (["--preset", "equal"], "squeezenet"),
        (["--preset", "paper"], "squeezenet"),
    ],
)
def test_what_is_said_about_the_network_counts(
    weights: Callable[..., Path], experiment_of: Any, words: list[str], backbone: str
) -> None:
    weights("resnet18")
    experiment, said = experiment_of(*words)
    assert (experiment.backbone, said) == (backbone, None)


def test_datasets_with_a_name_keep_the_network_of_their_preset(
    weights: Callable[..., Path], experiment_of: Any
) -> None:
    weights("resnet18")
    experiment, said = experiment_of("--target", "photo", dataset="pacs")
    assert (experiment.backbone, said) == ("squeezenet", None)


def test_a_run_that_was_begun_keeps_its_network(
    weights: Callable[..., Path], experiment_of: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Weights that come later change nothing; a run of a network that nobody chose is another experiment."""
    from metavib.interfaces.cli.training import experiments

    weights("resnet18", "squeezenet1_0")
    for recorded, taken in (("squeezenet", "squeezenet"), ("digits", "resnet18")):
        record = {"backbone": recorded}
        monkeypatch.setattr(experiments, "_recorded_experiment", lambda place, record=record: record)
        for words in ([], ["--out", tmp_path / "run"]):
            assert experiment_of(*words)[0].backbone == taken
