from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from places import DATA

from metavib.core.errors import UserError
from metavib.data.decoding.images import size_and_mode
from metavib.data.sources.pacs import CLASSES, DOMAINS, open_pacs


def make_images(home: Path) -> None:
    """Four files of each class in each domain; a listing opens none."""
    for domain in DOMAINS:
        for label in CLASSES:
            (home / domain / label).mkdir(parents=True)
            for number in range(4):
                (home / domain / label / f"pic_{number}.webp").write_bytes(b"")


def make_lists(folder: Path) -> None:
    """The first of each class is for crossval; all labels are wrong, as some of the official ones."""
    folder.mkdir(parents=True, exist_ok=True)
    for domain in DOMAINS:
        for part, numbers in {"train": (1, 2, 3), "crossval": (0,), "test": (0, 1, 2, 3)}.items():
            lines = [f"{domain}/{label}/pic_{number}.jpg 0\n" for label in CLASSES for number in numbers]
            (folder / f"{domain}_{part}_kfold.txt").write_text("".join(lines))


@pytest.mark.parametrize("home", ["pacs", "PACS", "PACS/kfold", "."])
@pytest.mark.parametrize("lists", ["pacs_splits", "PACS/pacs_splits", "pacs_label", "beside", None])
def test_images_and_lists_are_found_where_people_put_them(
    tmp_path: Path, home: str, lists: str | None
) -> None:
    make_images(tmp_path / home)
    if lists:
        make_lists(tmp_path / (home if lists == "beside" else lists))
    dataset = open_pacs(tmp_path)
    assert dataset.name == "pacs"
    assert dataset.domains == ("photo", "art_painting", "cartoon", "sketch")
    assert dataset.protocol == ("official lists" if lists else "stratified 90/10")
    listing = dataset.listing("cartoon")
    assert listing.names[:2] == ("cartoon/dog/pic_0.webp", "cartoon/dog/pic_1.webp")
    assert Counter(listing.classes) == dict.fromkeys(CLASSES, 4)
    assert listing.parts[:4] == (("crossval", "train", "train", "train") if lists else ("", "", "", ""))


def test_an_image_of_the_test_list_alone_is_crossval(tmp_path: Path) -> None:
    make_images(tmp_path)
    make_lists(tmp_path)
    path = tmp_path / "photo_train_kfold.txt"
    path.write_text(path.read_text().replace("photo/dog/pic_2.jpg", "photo/dog/pic_1.jpg"))
    assert open_pacs(tmp_path).listing("photo").parts[:4] == ("crossval", "train", "crossval", "train")


def test_lists_and_files_that_do_not_match_are_named(tmp_path: Path) -> None:
    make_images(tmp_path)
    make_lists(tmp_path)
    (tmp_path / "photo/dog/stranger.webp").write_bytes(b"")
    with pytest.raises(UserError, match=r"in no list of .*: photo/dog/stranger; remove"):
        open_pacs(tmp_path)
    (tmp_path / "photo/dog/stranger.webp").unlink()
    for label in CLASSES:
        (tmp_path / f"photo/{label}/pic_1.webp").unlink()
    with pytest.raises(UserError, match=r"have no file: photo/dog/pic_1, .* and 2 more; unpack PACS again"):
        open_pacs(tmp_path)


def test_a_missing_list_an_unknown_class_and_an_empty_domain_are_errors(tmp_path: Path) -> None:
    make_images(tmp_path)
    make_lists(tmp_path)
    (tmp_path / "sketch_crossval_kfold.txt").unlink()
    with pytest.raises(UserError, match=r"cannot read .*sketch_crossval_kfold.txt; put all twelve"):
        open_pacs(tmp_path)
    (tmp_path / "sketch/zebra").mkdir()
    (tmp_path / "sketch/zebra/1.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"PACS has no classes zebra"):
        open_pacs(tmp_path)
    for path in (tmp_path / "photo").glob("*/*"):
        path.unlink()
    with pytest.raises(UserError, match=r"no image in photo/<class>/"):
        open_pacs(tmp_path)


def test_missing_pacs_says_where_it_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"PACS is not in .*/pacs/<domain>/<class>/.*--data DIR or METAVIB_DATA"
    ):
        open_pacs(tmp_path)


@pytest.mark.skipif(not (DATA / "pacs/photo").is_dir(), reason=f"no PACS in {DATA / 'pacs'}")
def test_real_pacs() -> None:
    dataset = open_pacs(DATA)
    assert dataset.protocol == "official lists"
    counts = {domain: Counter(dataset.listing(domain).parts) for domain in DOMAINS}
    assert counts == {
        "photo": {"train": 1499, "crossval": 171},
        "art_painting": {"train": 1840, "crossval": 208},
        "cartoon": {"train": 2107, "crossval": 237},
        "sketch": {"train": 3531, "crossval": 398},
    }
    assert [counts[domain].total() for domain in DOMAINS] == [1670, 2048, 2344, 3929]
    art = dataset.listing("art_painting")
    assert art.parts[art.names.index("art_painting/dog/pic_249.webp")] == "crossval"  # the lists' slip
    assert {label for domain in DOMAINS for label in dataset.listing(domain).classes} == set(CLASSES)
    for name in (dataset.listing(domain).names[0] for domain in DOMAINS):
        assert size_and_mode((DATA / "pacs" / name).read_bytes(), name)[:2] == (227, 227)
