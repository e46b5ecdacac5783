"""Terra Incognita by its annotations, and in DomainBed's folders."""

from __future__ import annotations

import json

import published_miniatures as made
import pytest

from metavib.core.errors import UserError
from metavib.data.sources.terra_incognita import ANNOTATIONS, CLASSES, open_terra_incognita


@pytest.fixture
def root(tmp_path):
    for files in made.terra():
        made.write(files, tmp_path / "terra-incognita")
    return tmp_path


def test_cameras_are_domains_and_annotations_labels(root):
    dataset = open_terra_incognita(root)
    assert dataset.domains == ("location_38", "location_43", "location_46", "location_100")
    for domain in dataset.domains:
        listing = dataset.listing(domain)
        assert sorted(listing.classes) == sorted(CLASSES)  # no car, and nothing with two animals
    assert dataset.remarks == ("1 images show animals of two classes: they are left out",)


def test_folders_by_class_are_taken_too(tmp_path):
    places = [f"location_{camera}" for camera in (38, 43, 46, 100)]
    made.write(made.folders(places, ["cat", "empty"]), tmp_path / "terra_incognita")
    assert open_terra_incognita(tmp_path).listing("location_46").classes == ("cat", "cat", "empty", "empty")


def test_damaged_annotations_are_refused(root):
    path = root / "terra-incognita" / ANNOTATIONS / "train_annotations.json"
    record = json.loads(path.read_text())
    record["images"][0]["file_name"] = "../../outside.jpg"
    path.write_text(json.dumps(record))
    with pytest.raises(UserError, match="lies outside"):
        open_terra_incognita(root)
    path.write_text(json.dumps({"images": []}))
    with pytest.raises(UserError, match="cannot be read"):
        open_terra_incognita(root)
    path.unlink()
    with pytest.raises(UserError, match="no image of location_38"):
        open_terra_incognita(root)
