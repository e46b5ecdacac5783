"""PACS (Li et al., "Deeper, broader and artier domain generalization", ICCV 2017) and its official lists."""

import posixpath
from collections.abc import Sequence
from pathlib import Path

from metavib.core.errors import UserError
from metavib.data.dataset import Dataset
from metavib.data.file_dataset import File, FileDataset
from metavib.data.sources.published import few, home_of, lines_of_list, missing, require_classes, scan_domain

DOMAINS = ("photo", "art_painting", "cartoon", "sketch")
NAMES, INNER = ("pacs", "PACS"), ("", "kfold", "images", "pacs/images")  # as it is handed round
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


def open_pacs(root: Path, *, protocol: str | None = None, seed: int = 0) -> Dataset:
    """photo, art painting, cartoon and sketch; 7 classes; with the official lists where they are there."""
    home = home_of(root, NAMES, INNER, DOMAINS)
    if home is None:
        expected = f"{root}/pacs/<domain>/<class>/* with the domains {', '.join(DOMAINS)}"
        raise missing("pacs", "PACS", root, expected)
    beside = (root / "pacs_splits", root / "PACS" / "pacs_splits", root / "pacs_label")
    folders = (*beside, home, home.parent / "splits")
    lists = next((folder for folder in folders if any(folder.glob("*_kfold.txt"))), None)
    files: dict[str, list[File]] = {}
    ignored: list[str] = []
    for domain in DOMAINS:
        found, others = scan_domain(home, domain, {}, "PACS")
        ignored += others
        require_classes({domain: found}, CLASSES, "PACS")
        files[domain] = _with_parts(found, lists, domain) if lists else found
    protocol = "official lists" if lists else "stratified 90/10"
    return FileDataset("pacs", home, files, protocol=protocol, ignored=ignored)


def _with_parts(files: Sequence[File], lists: Path, domain: str) -> list[File]:
    """The files with the part that the lists give them.

    Names are matched without their extension, because copies of PACS are re-encoded, and classes come from
    the folders, because labels in the lists are partly wrong. The test list is the whole domain. One image,
    art_painting/dog/pic_249, is in that list only, and its neighbour is twice in the crossval list: a slip
    that is mended here by counting what is only in the test list as crossval.
    """
    part_of = dict.fromkeys(_names_in(lists / f"{domain}_test_kfold.txt"), "crossval")
    part_of |= dict.fromkeys(_names_in(lists / f"{domain}_crossval_kfold.txt"), "crossval")
    part_of |= dict.fromkeys(_names_in(lists / f"{domain}_train_kfold.txt"), "train")
    stems = [_stem(file.path) for file in files]
    if unlisted := sorted(set(stems) - set(part_of)):
        raise UserError(f"images of PACS that are in no list of {lists}: {few(unlisted)}; remove them")
    if missing := sorted(set(part_of) - set(stems)):
        raise UserError(
            f"images in the lists of {lists} that have no file: {few(missing)}; unpack PACS again"
        )
    return [file._replace(part=part_of[stem]) for file, stem in zip(files, stems, strict=True)]


def _names_in(path: Path) -> list[str]:
    return [_stem(line) for line in lines_of_list(path, "PACS")]


def _stem(path: str) -> str:
    return posixpath.splitext(posixpath.normpath(path))[0]  # pathlib takes ten times as long for thousands
