"""Published datasets, in miniature, fetched from a server of this machine: whole, or absent."""

from __future__ import annotations

import dataclasses
import shutil
from collections import namedtuple

import published_miniatures as made
import pytest

from metavib.core.errors import UserError
from metavib.data.fetching import download, fetch, publications
from metavib.data.fetching.publications import PUBLICATIONS, Archive
from metavib.data.sources.catalog import DATASETS, open_dataset

GONE = "http://127.0.0.1:9/"


@pytest.fixture
def mirror(monkeypatch):
    monkeypatch.setattr(download, "ATTEMPTS", 1)
    with made.served() as one:
        yield one


@pytest.fixture
def published(mirror, monkeypatch):
    """Publishes archives under a name, on the mirror, with the count of images that there are in miniature."""

    def publish(name, archives, images, gone_first=True):
        own = []
        for file, (content, into) in archives.items():
            mirror.files[file] = content
            addresses = (f"{GONE}{file}", mirror.address + file) if gone_first else (mirror.address + file,)
            own.append(Archive(file, addresses, into=into))
        monkeypatch.setitem(
            PUBLICATIONS,
            name,
            dataclasses.replace(PUBLICATIONS[name], archives=tuple(own), images=images),
        )

    return publish


def everything():
    """Name: the archives, how many images are found, and the protocol."""
    annotations, images = made.terra()
    archives, lists = made.domain_net()
    nets = {f"{domain}.zip": (made.zipped(files), "") for domain, files in archives.items()}
    nets |= {name: (text.encode(), "splits") for name, text in lists.items()}
    return {
        "pacs": ({"pacs.zip": (made.zipped(made.pacs_with_lists()), "")}, 56, "official lists"),
        "vlcs": ({"vlcs": (made.tarred(made.vlcs()), "")}, 40, "stratified split"),
        "office-home": ({"office-home.zip": (made.zipped(made.office_home()), "")}, 260, "stratified split"),
        "terra-incognita": (
            {
                "annotations.tar.gz": (made.tarred(annotations), ""),
                "images.tar.gz": (made.tarred(images), ""),
            },
            40,
            "4 cameras, 10 classes, stratified split",
        ),
        "domain-net": (nets, 2 * 6 * 345, "official lists"),
        "digits-dg": ({"digits-dg.zip": (made.zipped(made.digits_dg()), "")}, 160, "official parts"),
        "camelyon17": ({"camelyon17.tar.gz": (made.tarred(made.camelyon17()), "")}, 40, "WILDS parts"),
        "iwildcam": ({"iwildcam.tar.gz": (made.tarred(made.iwildcam()), "")}, 763, "WILDS cameras"),
    }


def left(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) if folder.exists() else []


def test_what_can_be_fetched_can_be_opened_by_the_same_name():
    assert PUBLICATIONS.keys() <= DATASETS.keys()
    assert PUBLICATIONS.keys() == everything().keys()


def test_addresses_and_licences_are_whole():
    for one in PUBLICATIONS.values():
        assert one.licence
        assert one.page.startswith("http")
        for archive in one.archives:
            assert all(address.startswith(("https://", "http://")) for address in archive.mirrors)
            assert len(set(archive.mirrors)) == len(archive.mirrors) >= 1
    assert publications.PUBLICATIONS["domain-net"].size > 18e9
    assert publications.PUBLICATIONS["pacs"].size is None


@pytest.mark.parametrize("name", PUBLICATIONS)
def test_a_published_dataset_is_fetched_whole_and_opened(published, tmp_path, name):
    archives, images, protocol = everything()[name]
    published(name, archives, images)
    root = tmp_path / "data"
    dataset, was_there = fetch.fetch(name, root)
    assert not was_there
    assert dataset.protocol == protocol
    assert sum(len(dataset.listing(domain).names) for domain in dataset.domains) == images
    assert [path.name for path in root.iterdir()] == [name]
    again, was_there = fetch.fetch(name, root)
    assert was_there
    assert again.domains == open_dataset(name, data_root=root, protocol=None, seed=0).domains
    first = dataset.listing(dataset.domains[0]).names[0]
    assert (dataset.root / first).is_file()


def test_the_next_mirror_is_taken_where_one_gives_something_else(mirror, published, tmp_path, monkeypatch):
    published("pacs", {"pacs.zip": (made.zipped(made.vlcs()), "")}, 56, gone_first=False)
    mirror.files["other.zip"] = b"no archive"
    mirror.files["right.zip"] = made.zipped(made.pacs_kfold())
    addresses = tuple(mirror.address + name for name in ("pacs.zip", "other.zip", "right.zip"))
    archives = (Archive("pacs.zip", addresses),)
    monkeypatch.setitem(PUBLICATIONS, "pacs", dataclasses.replace(PUBLICATIONS["pacs"], archives=archives))
    said = []
    dataset, _ = fetch.fetch("pacs", tmp_path, fetch.Progress(said.append))
    assert dataset.protocol == "stratified 90/10"
    assert "laid out otherwise" in said[0]
    assert "neither a zip nor a tar" in said[1]
    assert [path.name for path in tmp_path.iterdir()] == ["pacs"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (lambda: made.zipped(made.vlcs()), "laid out otherwise"),
        (lambda: made.zipped(made.pacs_kfold())[:3000], "neither a zip nor a tar|damaged"),
        (lambda: made.zipped({"../evil": b"", **made.pacs_kfold()}), "outside of its folder"),
        (lambda: made.zipped(dict(list(made.pacs_kfold().items())[:50])), "no image in|it has 4 domains, "),
        (
            lambda: made.zipped({**made.pacs_kfold(), "kfold/photo/cat/1.png": b""}),
            "PACS has no classes cat",
        ),
    ],
)
def test_what_is_not_the_dataset_leaves_nothing(published, tmp_path, content, why):
    published("pacs", {"pacs.zip": (content(), "")}, 56, gone_first=False)
    with pytest.raises(UserError, match=why):
        fetch.fetch("pacs", tmp_path / "data")
    assert left(tmp_path / "data") == []
    assert not (tmp_path / "evil").exists()


def test_a_download_that_was_cut_off_goes_on_and_nothing_else_is_left(mirror, published, tmp_path):
    content = made.zipped(made.pacs_kfold())
    published("pacs", {"pacs.zip": (content, "")}, 56, gone_first=False)
    mirror.cut["pacs.zip"] = 5000
    with pytest.raises(UserError, match="the same command goes on"):
        fetch.fetch("pacs", tmp_path)
    assert left(tmp_path) == [
        ".fetch",
        ".fetch/pacs",
        ".fetch/pacs/pacs.zip.part",
        ".fetch/pacs/pacs.zip.part.json",
    ]
    fetch.fetch("pacs", tmp_path)
    assert mirror.asked[-1] == ("pacs.zip", "bytes=5000-")
    assert [path.name for path in tmp_path.iterdir()] == ["pacs"]


def test_too_little_room_is_known_before_anything_is_asked_for(mirror, published, tmp_path, monkeypatch):
    published("pacs", {"pacs.zip": (made.zipped(made.pacs_kfold()), "")}, 56)
    large = (PUBLICATIONS["pacs"].archives[0]._replace(size=10**9),)
    monkeypatch.setitem(PUBLICATIONS, "pacs", dataclasses.replace(PUBLICATIONS["pacs"], archives=large))
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, 10**9))
    with pytest.raises(UserError, match=r"PACS, with its archives, takes 2\.1 GB"):
        fetch.fetch("pacs", tmp_path / "data")
    assert mirror.asked == []
    assert left(tmp_path / "data") == []


def test_a_folder_of_that_name_is_not_touched(published, tmp_path):
    published("pacs", {"pacs.zip": (made.zipped(made.pacs_kfold()), "")}, 56)
    (tmp_path / "pacs").mkdir()
    (tmp_path / "pacs" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="is there, but it is not PACS: move it away"):
        fetch.fetch("pacs", tmp_path)
    assert left(tmp_path) == ["pacs", "pacs/mine.txt"]


def test_a_count_that_differs_a_little_is_told(published, tmp_path):
    published("pacs", {"pacs.zip": (made.zipped(made.pacs_kfold()), "")}, 57)
    said = []
    fetch.fetch("pacs", tmp_path, fetch.Progress(said.append))
    assert "PACS has 56 images here; 57 are published." in said


def test_leftovers_of_a_killed_process_do_no_harm(published, tmp_path):
    published("pacs", {"pacs.zip": (made.zipped(made.pacs_kfold()), "")}, 56)
    made.write({"pacs/junk": b"1"}, tmp_path / ".fetch" / "pacs" / "whole")
    dataset, _ = fetch.fetch("pacs", tmp_path)
    assert len(dataset.domains) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["pacs"]


def test_an_unknown_name_is_refused(tmp_path):
    with pytest.raises(UserError, match="unknown dataset to fetch 'pac'; did you mean 'pacs'"):
        fetch.fetch("pac", tmp_path)
