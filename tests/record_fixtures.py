"""Records of an earlier version (`fixtures/README.md`), unpacked; a plugin: `conftest.py` names it."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parent / "fixtures"
IMAGES = FIXTURES / "images"
MADE_IN = "/tmp/metavib-records"  # noqa: S108  # as their records say
STEPS = 200  # of every run
GRID = ["train", f"{MADE_IN}/images", "--weights", f"{MADE_IN}/weights.safetensors", "--target", "art,photo"]
GRID += ["--seeds", "2", "--batch", "2", "--backbone", "digits", "--steps", str(STEPS)]
for _setting in (
    "images_per_domain=8",
    "latent_width=8",
    "latent_draws=2",
    "classifier_draws=2",
    "repeats=2",
):
    GRID += ["--set", _setting]


def digest(folder: Path) -> dict[str, str]:
    """The sha256 of every file of a folder."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The records, to be read only."""
    root = tmp_path_factory.mktemp("records")
    with tarfile.open(FIXTURES / "records-1.tar.xz") as packed:
        packed.extractall(root, filter="data")
    return root


@pytest.fixture(scope="session")
def frozen_records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The second archive, to be read only: images, weights and a calibrated run."""
    root = tmp_path_factory.mktemp("frozen-records")
    with tarfile.open(FIXTURES / "records-2.tar.xz") as packed:
        packed.extractall(root, filter="data")
    return root


@pytest.fixture
def records(unpacked: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Makes a copy of one of the records, which may be changed."""
    return lambda name: Path(shutil.copytree(unpacked / name, tmp_path / name))


@pytest.fixture
def here(unpacked: Path, tmp_path: Path) -> list[str]:
    """The flags that say where images and weights are now."""
    shutil.copytree(IMAGES, tmp_path / "data" / "images")
    shutil.copy(unpacked / "weights.safetensors", tmp_path / "data")
    return ["--data", str(tmp_path / "data"), "--device", "cpu"]


@pytest.fixture
def sweep_file(unpacked: Path, tmp_path: Path) -> Path:
    """What the sweeps were asked for, with the paths that their records have."""
    text = (unpacked / "sweep.yaml").read_text()
    for name in ("images", "weights.safetensors"):
        text = text.replace(f": {name}\n", f": {MADE_IN}/{name}\n")
    (tmp_path / "sweep.yaml").write_text(text)
    return tmp_path / "sweep.yaml"
