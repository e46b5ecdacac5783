"""Labels of photographs: a network's features find wrong ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from metavib.data.inspection import inspect
from metavib.data.sources.catalog import open_dataset
from metavib.data.suspicious_labels import LabelCheck, Suspicious
from metavib.training.at_hand import AtHand
from metavib.training.label_features import labels_by_network

CPU = torch.device("cpu")
CLASSES = ("dog", "guitar", "house")
EACH = 14  # images of a class in a domain


@pytest.fixture(scope="module")
def photographs(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    """PACS in small, not to be changed, and the names of the two images that have another class's label."""
    folder, wrong = tmp_path_factory.mktemp("photos"), set()
    for domain in ("photo", "cartoon"):
        for number, label in enumerate(CLASSES):
            for row, source in enumerate(sorted((real_data / "pacs" / domain / label).iterdir())[:EACH]):
                moved = row == 0 and label == "guitar"
                own = CLASSES[(number + 1) % 3] if moved else label
                name = Path(domain, own, f"{label}-{source.name}")
                wrong |= {str(name)} if moved else set()
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, folder / name)
    return folder, wrong


@pytest.fixture
def squeezenet(real_data: Path) -> AtHand:
    return AtHand("squeezenet", real_data / "weights" / "squeezenet1_0-imagenet.safetensors", False)


def test_wrong_labels_of_photographs_are_found_and_few_others_named(
    photographs: tuple[Path, set[str]], squeezenet: AtHand
) -> None:
    folder, wrong = photographs
    dataset = open_dataset(str(folder), data_root=None, protocol=None, seed=0)
    told: list[tuple[int, int]] = []
    found = labels_by_network(dataset, squeezenet, CPU, progress=lambda done, all_: told.append((done, all_)))
    count = len(CLASSES) * 2 * EACH
    assert (found.judged, found.classes, found.images) == (3, 3, count)
    assert told[-1] == (count, count)
    named = {one.name: (one.label, one.looks_like) for one in found.suspicious}
    assert wrong <= named.keys()
    assert all(named[name] == ("house", "guitar") for name in wrong)
    assert len(named) - len(wrong) <= 2


def test_a_file_that_cannot_be_read_is_left_out(folder: Path, squeezenet: AtHand) -> None:
    images = len(list(folder.rglob("*.png")))
    next((folder / "photo" / "dog").iterdir()).write_bytes(b"no image")
    dataset = open_dataset(str(folder), data_root=None, protocol=None, seed=0)
    assert labels_by_network(dataset, squeezenet, CPU).images == images - 1


def test_what_simple_features_said_is_replaced(folder: Path) -> None:
    report = inspect(open_dataset(str(folder), data_root=None, protocol=None, seed=0), judge_labels=True)
    one = Suspicious("art/cat/0.png", "art", "cat", "dog", 0.9)
    first = report.with_labels(LabelCheck((one,), 2, 2, 32))
    assert [p.text for p in first.problems if "may be wrong" in p.text] == [
        "1 label(s) may be wrong: art/cat/0.png looks like 'dog'. Look at them with --page FILE.html"
    ]
    again = first.with_labels(LabelCheck((), 2, 2, 32))
    assert again.problems == report.problems
    assert again.suspicious == ()


def test_the_command_says_by_which_network_it_judges(
    metavib: Callable[..., Any], photographs: tuple[Path, set[str]], squeezenet: AtHand, tmp_path: Path
) -> None:
    folder, wrong = photographs
    (tmp_path / "data" / "weights").mkdir(parents=True)
    (tmp_path / "data" / "weights" / squeezenet.weights.name).symlink_to(squeezenet.weights)
    page = tmp_path / "page.html"
    status, out, err = metavib(
        "data", folder, "--labels-by-network", "--data", tmp_path / "data", "--page", page
    )
    assert status == 0
    assert "labels are judged by squeezenet" in err
    assert "labels: looked at" in out
    assert all(Path(name).name in page.read_text() for name in wrong)


def test_without_weights_the_command_says_where_to_put_them(
    refused: Callable[..., str], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    told = refused("data", folder, "--labels-by-network", "--data", tmp_path / "nothing")
    assert "needs the weights of a network, and none are here" in told
    assert "is for folders of images" in refused("data", "rotated-digits", "--labels-by-network")
    assert "not allowed with" in refused("data", folder, "--labels-by-network", "--no-label-check")
