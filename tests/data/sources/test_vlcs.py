from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from metavib.core.errors import UserError
from metavib.data.sources.vlcs import CLASSES, FOLDERS_WITH_PARTS, open_vlcs


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")


def make_plain(home: Path) -> None:
    for domain in FOLDERS_WITH_PARTS:
        for number, label in enumerate(CLASSES):
            for image in range(number + 1):
                touch(home / domain / label / f"{image}.jpg")


def make_with_parts(home: Path) -> None:
    for folder in FOLDERS_WITH_PARTS.values():
        for part, count in {"train": 3, "crossval": 1, "test": 2, "full": 6}.items():
            for number in range(5):
                for image in range(count):
                    touch(home / folder / part / str(number) / f"{image}.jpg")


@pytest.mark.parametrize("home", ["VLCS", "vlcs", "."])
def test_domains_of_class_folders(tmp_path: Path, home: str) -> None:
    make_plain(tmp_path / home)
    dataset = open_vlcs(tmp_path)
    assert dataset.name == "vlcs"
    assert dataset.protocol == "stratified split"
    assert dataset.domains == ("VOC2007", "LabelMe", "Caltech101", "SUN09")
    listing = dataset.listing("SUN09")
    assert Counter(listing.classes) == {"bird": 1, "car": 2, "chair": 3, "dog": 4, "person": 5}
    assert listing.names[0] == "SUN09/bird/0.jpg"
    assert set(listing.parts) == {""}


@pytest.mark.parametrize("home", ["VLCS", "vlcs", "."])
def test_domains_of_parts_have_the_same_names_and_classes(tmp_path: Path, home: str) -> None:
    make_with_parts(tmp_path / home)
    dataset = open_vlcs(tmp_path)
    assert dataset.protocol == "official parts"
    assert dataset.domains == ("VOC2007", "LabelMe", "Caltech101", "SUN09")
    listing = dataset.listing("VOC2007")
    assert Counter(listing.parts) == {"train": 15, "crossval": 5, "test": 10}
    assert Counter(listing.classes) == dict.fromkeys(CLASSES, 6)
    assert all(name.startswith("PASCAL/") for name in listing.names)
    assert listing.classes[listing.names.index("PASCAL/test/3/1.jpg")] == "dog"


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"VLCS is not in .*VOC2007.*PASCAL.*--data DIR or METAVIB_DATA"):
        open_vlcs(tmp_path)
    make_plain(tmp_path)
    touch(tmp_path / "LabelMe/cow/1.jpg")
    with pytest.raises(UserError, match=r"VLCS has no classes cow"):
        open_vlcs(tmp_path)
    for path in (tmp_path / "VOC2007").glob("*/*"):
        path.unlink()
    with pytest.raises(UserError, match=r"no image in VOC2007/<class>/"):
        open_vlcs(tmp_path)
