from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metavib.core.errors import UserError
from metavib.data.file_dataset import FileDataset
from metavib.data.sources import folder
from metavib.data.sources.folder import open_folder


def touch(root: Path, *names: str) -> None:
    """Files of no content: a listing must not mind."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")


def test_domains_classes_and_names_are_sorted(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "b/y/2.JPG",
        "b/x/10.png",
        "b/x/1.tiff",
        "a/x/1.webp",
        "a/y/1.jpeg",
        "a/y/1.bmp",
        "a/y/0.tif",
    )
    dataset = open_folder(tmp_path)
    assert dataset.domains == ("a", "b")
    assert dataset.name == tmp_path.name
    assert dataset.protocol == "folder"
    assert dataset.channels == 3
    assert dataset.listing("a").names == ("a/x/1.webp", "a/y/0.tif", "a/y/1.bmp", "a/y/1.jpeg")
    assert dataset.listing("b").names == ("b/x/1.tiff", "b/x/10.png", "b/y/2.JPG")
    assert dataset.listing("b").classes == ("x", "x", "y")
    assert dataset.listing("b").parts == ("", "", "")


def test_hidden_other_and_nested_files_are_left_out(tmp_path: Path) -> None:
    touch(
        tmp_path, "a/x/1.png", "a/x/._1.png", "a/x/notes.txt", "a/x/deeper/2.png", ".git/x/3.png", "read.me"
    )
    dataset = open_folder(tmp_path)
    assert isinstance(dataset, FileDataset)
    assert dataset.domains == ("a",)
    assert dataset.listing("a").names == ("a/x/1.png",)
    assert dataset.ignored == ("a/x/notes.txt",)


def test_official_parts(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "a/train/x/1.png",
        "a/val/x/2.png",
        "a/test/y/3.png",
        "b/train/x/4.png",
        "b/crossval/x/5.png",
    )
    touch(tmp_path, "c/test/1.png", "c/else/1.png")  # not all folders are parts: these are classes
    dataset = open_folder(tmp_path)
    assert dataset.listing("a").names == ("a/test/y/3.png", "a/train/x/1.png", "a/val/x/2.png")
    assert dataset.listing("a").parts == ("test", "train", "crossval")
    assert dataset.listing("a").classes == ("y", "x", "x")
    assert dataset.listing("b").parts == ("crossval", "train")
    assert dataset.listing("c").classes == ("else", "test")
    assert dataset.listing("c").parts == ("", "")


def test_links_are_followed_and_a_broken_one_is_not_lost(tmp_path: Path) -> None:
    touch(tmp_path, "store/x/1.png", "root/a/y/2.png")
    (tmp_path / "root/b").symlink_to(tmp_path / "store")
    (tmp_path / "root/a/y/3.png").symlink_to(tmp_path / "store/x/1.png")
    (tmp_path / "root/a/y/4.png").symlink_to(tmp_path / "nowhere.png")
    dataset = open_folder(tmp_path / "root")
    assert dataset.listing("a").names == ("a/y/2.png", "a/y/3.png", "a/y/4.png")
    assert dataset.listing("b").names == ("b/x/1.png",)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "is empty: it has no domain folder"),
        (["1.png"], "images lie directly in .*; expected .*/<domain>/<class>/"),
        (["cat/1.png", "dog/2.png"], "images lie directly in .*cat; expected .*/<domain>/<class>/"),
        (["a/x/1.png", "b/x/1.txt"], "domain 'b' of .* has no image in class folders"),
        (["a/x/1.png", "b/train/x/1.txt"], "domain 'b' of .* has no image"),
        (["pacs/photo/dog/1.png"], "domain 'pacs' of .* has no image in class folders"),
        (["a/x\n/1.png"], "name that cannot be printed; rename it"),
        (["b\x1b/x/1.png"], "name that cannot be printed; rename it"),
    ],
)
def test_a_folder_that_is_no_dataset_is_explained(tmp_path: Path, names: list[str], message: str) -> None:
    touch(tmp_path, *names)
    with pytest.raises(UserError, match=message) as raised:
        open_folder(tmp_path)
    assert "\n" not in str(raised.value)


def test_missing_not_a_folder_and_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "file", "root/a/x/1.png")
    with pytest.raises(UserError, match=r"there is no folder .*missing"):
        open_folder(tmp_path / "missing")
    with pytest.raises(UserError, match=r"file is not a folder"):
        open_folder(tmp_path / "file")

    def refuse(path: Path) -> None:  # permissions do not bind root, who may run these tests
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(UserError, match=r"cannot look into .* \(Permission denied\); check its permissions"):
        open_folder(tmp_path / "root")


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "a/x/1.png")
    (tmp_path / "a/x" / os.fsdecode(b"\xff.png")).write_bytes(b"")
    with pytest.raises(UserError, match=r"is not UTF-8; rename it") as raised:
        open_folder(tmp_path)
    str(raised.value).encode()


@settings(max_examples=30, deadline=None)
@given(order=st.permutations(["a/x/1.png", "a/y/2.png", "b/x/3.png", "b/x/30.png", "b/x/4.png"]))
def test_the_order_of_the_file_system_does_not_matter(
    order: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("root")
    touch(root, *order)
    dataset = open_folder(root)
    assert dataset.listing("a").names == ("a/x/1.png", "a/y/2.png")
    assert dataset.listing("b").names == ("b/x/3.png", "b/x/30.png", "b/x/4.png")


def test_no_break_spaces_as_in_screenshots_are_fine() -> None:
    assert not folder.UNPRINTABLE.search("Screenshot 3.04\u202fPM\u00a0über 写真.png")


def test_the_name_of_an_image_may_have_a_line_break(tmp_path: Path) -> None:
    touch(tmp_path, "a/x/1\n.png", "a/x/Icon\r", "b/x/2.png")
    dataset = open_folder(tmp_path)
    assert dataset.listing("a").names == ("a/x/1\n.png",)


def test_links_that_lead_back_are_passed_over_and_told_of(tmp_path: Path) -> None:
    touch(tmp_path, "a/x/1.png", "b/train/x/2.png", "b/test/x/3.png")
    (tmp_path / "self").symlink_to(".")
    (tmp_path / "a/up").symlink_to("..")
    (tmp_path / "b/train/home").symlink_to(tmp_path)
    dataset = open_folder(tmp_path)
    assert isinstance(dataset, FileDataset)
    assert dataset.domains == ("a", "b")
    assert dataset.listing("b").parts == ("test", "train")
    assert [remark.partition(" is a link")[0] for remark in dataset.remarks] == [
        str(tmp_path / "self"),
        str(tmp_path / "a/up"),
        str(tmp_path / "b/train/home"),
    ]


def test_class_folders_without_images_are_told_of(tmp_path: Path) -> None:
    touch(tmp_path, "a/x/1.png", "a/notes/read.txt", "b/train/x/2.png", "b/test/x/3.png")
    (tmp_path / "a/empty").mkdir()
    (tmp_path / "b/train/y").mkdir()
    dataset = open_folder(tmp_path)
    assert isinstance(dataset, FileDataset)
    assert [remark.partition(" holds")[0] for remark in dataset.remarks] == [
        "class folder a/empty",
        "class folder a/notes",
        "class folder b/train/y",
    ]
