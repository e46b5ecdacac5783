"""The network that a run begins with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from metavib.core.errors import UserError
from metavib.training.experiment import Experiment, experiment_from
from metavib.training.first_network import initial_algorithm, local_weights

CPU = torch.device("cpu")


def an_experiment(seed: int = 0, **settings: str) -> Experiment:
    values = {"dataset": "rotated-digits", "target": "0", "algorithm": "erm", "seed": seed}
    return experiment_from(values, settings)


def test_first_weights_depend_on_the_seed_alone() -> None:
    first, again, other = (
        initial_algorithm(an_experiment(seed), 10, 5, CPU).state_dict() for seed in (0, 0, 1)
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_convolutions_lie_in_memory_as_they_are_computed() -> None:
    algorithm = initial_algorithm(an_experiment(), 10, 5, CPU)
    weights = [w for w in algorithm.backbone.parameters() if w.dim() == 4 and w.shape[1] > 1]
    assert weights
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)


@pytest.mark.parametrize("precision", ["auto", "float32"])
def test_a_cpu_computes_in_float32(precision: str) -> None:
    algorithm = initial_algorithm(an_experiment(precision=precision), 10, 5, CPU)
    assert algorithm.backbone.precision is None


def test_bfloat16_is_refused_where_it_cannot_be_had() -> None:
    with pytest.raises(UserError, match="needs a GPU that has it: use --set precision=float32"):
        initial_algorithm(an_experiment(precision="bfloat16"), 10, 5, CPU)


def test_weights_beside_the_data_are_taken_before_a_download(tmp_path: Path) -> None:
    assert local_weights("squeezenet", "imagenet", tmp_path) == "imagenet"  # torchvision will fetch them
    file = tmp_path / "weights" / "squeezenet1_0-imagenet.safetensors"
    file.parent.mkdir()
    file.touch()
    assert local_weights("squeezenet", "imagenet", tmp_path) == str(file)
    assert local_weights("alexnet", "imagenet", tmp_path) == "imagenet"  # another network's are not
    assert local_weights("squeezenet", "none", tmp_path) == "none"
    assert local_weights("digits", "imagenet", tmp_path) == "imagenet"  # which has none, and says so itself


def test_a_folder_of_data_is_asked_for_by_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METAVIB_DATA", str(tmp_path))
    file = tmp_path / "weights" / "squeezenet1_0-imagenet.safetensors"
    file.parent.mkdir()
    file.touch()
    assert local_weights("squeezenet", "imagenet", None) == str(file)
