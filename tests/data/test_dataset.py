from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from metavib.core.errors import UserError
from metavib.data.dataset import Dataset, digest_of
from metavib.data.decoding import images
from metavib.data.file_dataset import File, FileDataset


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileDataset:
    monkeypatch.setenv("METAVIB_CACHE", str(tmp_path / "cache"))
    files = {}
    for number, domain in enumerate(("photo", "sketch")):
        files[domain] = [File(f"{domain}/{label}.png", label, "train") for label in ("dog", "cat")]
        for place, file in enumerate(files[domain]):
            path = tmp_path / file.path
            path.parent.mkdir(exist_ok=True)
            Image.new("L", (5, 5), 10 * number + place).save(path)
    return FileDataset("mine", tmp_path, files, protocol="folder")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all image files that are read from here on."""
    names: list[str] = []
    read: Callable[[Path, str], bytes] = images.image_bytes

    def spy(path: Path, name: str) -> bytes:
        names.append(name)
        return read(path, name)

    monkeypatch.setattr(images, "image_bytes", spy)
    return names


def test_a_listing_opens_no_image(dataset: FileDataset, opened: list[str]) -> None:
    listing = dataset.listing("photo")
    assert opened == []
    assert listing.domain == "photo"
    assert listing.names == ("photo/dog.png", "photo/cat.png")
    assert listing.classes == ("dog", "cat")
    assert listing.parts == ("train", "train")


def test_a_listing_needs_no_readable_image(dataset: FileDataset) -> None:
    for domain in dataset.domains:
        for name in dataset.listing(domain).names:
            (dataset.root / name).unlink()
    assert len(dataset.listing("sketch").names) == 2


def test_opening_a_domain_opens_its_own_files_only(dataset: FileDataset, opened: list[str]) -> None:
    for name in dataset.listing("sketch").names:
        (dataset.root / name).write_bytes(b"damaged: opening it would be an error")
    found = dataset.images("photo", 4)
    assert set(opened) == set(dataset.listing("photo").names)
    assert found.pixels[:, 0, 0, 0].tolist() == [0, 1]
    with pytest.raises(UserError, match=r"sketch/dog.png"):
        dataset.images("sketch", 4)


# Python itself reports every file that a process opens, whichever function does it.
AUDITED = """
import json, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from metavib.data.sources.catalog import open_dataset
from metavib.data.splits import split_domains

dataset = open_dataset(sys.argv[1], data_root=None, protocol=None, seed=0)
split_domains(dataset, "target", seed=0, validation_share=0.5)
listed = [path for path in opened if path.endswith(".png")]
for domain in ("one", "two"):
    dataset.images(domain, 8)
print(json.dumps([listed, [path for path in opened if path.endswith(".png")]]))
"""


@pytest.mark.processes
def test_by_the_audit_of_python_target_files_stay_closed(tmp_path: Path) -> None:
    for domain in ("one", "two", "target"):
        (tmp_path / "root" / domain / "cat").mkdir(parents=True)
        for number in range(2):
            Image.new("L", (5, 5), number).save(tmp_path / "root" / domain / f"cat/{number}.png")
    environment = os.environ | {
        "METAVIB_CACHE": str(tmp_path / "cache"),
        "PYTHONPATH": str(Path(images.__file__).parents[3]),
    }
    command = [sys.executable, "-c", AUDITED, str(tmp_path / "root")]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    while_listing, in_all = json.loads(output)
    assert while_listing == []
    assert {Path(path).relative_to(tmp_path / "root").parts[0] for path in in_all} == {"one", "two"}


def test_digests_are_those_of_the_files(dataset: FileDataset) -> None:
    expected = tuple(digest_of((dataset.root / name).read_bytes()) for name in dataset.listing("photo").names)
    assert dataset.images("photo", 4).digests == expected
    assert len(set(expected)) == 2


def test_an_unknown_domain_is_named_with_the_nearest(dataset: FileDataset) -> None:
    with pytest.raises(UserError, match=r"unknown domain 'fhoto'; did you mean 'photo'"):
        dataset.listing("fhoto")


def test_a_dataset_is_abstract_or_final() -> None:
    assert Dataset.__abstractmethods__ == {"listing", "images"}
    assert FileDataset.__final__
