"""Tables of pandas and ImageFolders of torchvision, written as manifests and trained on."""

from __future__ import annotations

import pytest
from torchvision.datasets import ImageFolder

import metavib
from metavib.core.errors import UserError
from metavib.data.sources.catalog import open_dataset

pandas = pytest.importorskip("pandas")


@pytest.fixture
def table(folder):
    paths = sorted(folder.rglob("*.png"))
    rows = [{"path": str(path), "label": path.parts[-2], "domain": path.parts[-3]} for path in paths]
    return pandas.DataFrame(rows)


def test_a_table_becomes_a_dataset_and_is_trained_on(table, tmp_path):
    path = metavib.manifest(table, tmp_path / "clinic, one.csv")
    small = {"images_per_domain": 8, "latent_draws": 2, "classifier_draws": 2, "latent_width": 16}
    small |= {"repeats": 2, "validations": 2}
    run = metavib.train(
        path,
        target="sketch",
        steps=2,
        backbone="digits",
        weights="none",
        settings=small,
        out=tmp_path / "run",
    )
    assert run.results["dataset"] == "clinic, one"
    assert run.results["unseen"]["images"] == 8


def test_splits_of_a_table_are_kept(table, tmp_path):
    table["split"] = ["train", "val"] * (len(table) // 2)
    dataset = open_dataset(
        str(metavib.manifest(table, tmp_path / "a.csv")), data_root=None, protocol=None, seed=0
    )
    assert set(dataset.listing("photo").parts) == {"train", "crossval"}


def test_an_image_folder_for_each_domain(folder, tmp_path):
    folders = {path.name: ImageFolder(str(path)) for path in folder.iterdir()}
    dataset = open_dataset(
        str(metavib.manifest(folders, tmp_path / "a.csv")), data_root=None, protocol=None, seed=0
    )
    assert dataset.domains == ("art", "cartoon", "photo", "sketch")
    assert dataset.listing("art").classes == ("cat",) * 4 + ("dog",) * 4


def test_what_is_wrong_is_said_and_nothing_is_written(table, folder, tmp_path):
    place = tmp_path / "out" / "a.csv"
    place.parent.mkdir()
    empty, gone = table.copy(), table.copy()
    empty.loc[3, "label"] = None
    gone.loc[2, "path"] = "gone.png"
    for source, why in [
        (table.drop(columns="domain"), "this one has no domain"),
        (empty, "empty cells"),
        (gone, r"a\.csv, line 4: there is no file"),
        (table.iloc[:0], "lists no image"),
        ({"photo": [1]}, "'photo' is list, not a torchvision ImageFolder"),
        ([1, 2], "this one has no path, label, domain"),
    ]:
        with pytest.raises(UserError, match=why):
            metavib.manifest(source, place)
    with pytest.raises(UserError, match=r"a manifest is a \.csv file"):
        metavib.manifest(table, tmp_path / "out" / "a.txt")
    assert list(place.parent.iterdir()) == []
