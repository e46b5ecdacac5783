"""PACS (Li et al., "Deeper, broader and artier domain generalization", ICCV 2017) and its official lists."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from pathlib import Path

from metavib import untrusted
from metavib.data.dataset import Dataset, File, FileDataset
from metavib.data.folder import scan_classes
from metavib.errors import UserError

DOMAINS = ("photo", "art_painting", "cartoon", "sketch")
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


def open_pacs(root: Path) -> Dataset:
    """PACS below a data folder; its official lists decide the parts where they are found."""
    homes = (root / "pacs", root / "PACS", root / "PACS" / "kfold", root)
    home = next((home for home in homes if all((home / domain).is_dir() for domain in DOMAINS)), None)
    if home is None:
        raise UserError(
            f"PACS is not in {root}: expected {root}/pacs/<domain>/<class>/* with the domains "
            f"{', '.join(DOMAINS)}; say where it is by --data DIR or METAVIB_DATA"
        )
    lists = _find_lists((root / "pacs_splits", root / "PACS" / "pacs_splits", root / "pacs_label", home))
    files: dict[str, list[File]] = {}
    ignored: list[str] = []
    for domain in DOMAINS:
        found, others = scan_classes(home, domain, "")
        ignored += others
        if not found:
            raise UserError(f"PACS in {home} has no image in {domain}/<class>/; unpack it again")
        strangers = sorted({file.label for file in found} - set(CLASSES))
        if strangers:
            raise UserError(f"{home / domain} has folders that are no classes of PACS: {_few(strangers)}")
        files[domain] = _with_parts(found, lists, domain) if lists else found
    protocol = "official lists" if lists else "stratified 90/10"
    return FileDataset("pacs", home, files, protocol=protocol, ignored=ignored)


def _find_lists(folders: Sequence[Path]) -> Path | None:
    """The folder of the official lists: the first that has any of them."""
    return next((folder for folder in folders if any(folder.glob("*_kfold.txt"))), None)


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
        raise UserError(f"images of PACS that are in no list of {lists}: {_few(unlisted)}; remove them")
    if missing := sorted(set(part_of) - set(stems)):
        raise UserError(
            f"images in the lists of {lists} that have no file: {_few(missing)}; unpack PACS again"
        )
    return [file._replace(part=part_of[stem]) for file, stem in zip(files, stems, strict=True)]


def _names_in(path: Path) -> list[str]:
    """The images of a list, whose lines are `domain/class/name.jpg label`."""
    try:
        lines = untrusted.read_text(path, untrusted.TABLE_BYTES).splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}; put all twelve lists of PACS beside it, or none") from error
    return [_stem(line.rsplit(maxsplit=1)[0]) for line in lines if line.strip()]


def _stem(path: str) -> str:
    return posixpath.splitext(posixpath.normpath(path))[0]  # pathlib takes ten times as long for thousands


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
