"""Shared by datasets that are known by name: where they are looked for, and the errors where they are not."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from metavib.core import untrusted
from metavib.core.errors import UserError
from metavib.data.file_dataset import File
from metavib.data.sources.folder import scan_classes


class MissingDataError(UserError):
    """A known dataset is not where it was looked for."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


def missing(name: str, title: str, root: Path, expected: str) -> MissingDataError:
    """The error for a dataset that is not there, with the command that fetches it."""
    return MissingDataError(
        name,
        f"{title} is not in {root}: expected {expected}; fetch it by `metavib fetch {name}`, or say where it is "
        "by --data DIR or METAVIB_DATA",
    )


def home_of(root: Path, names: Iterable[str], inner: Sequence[str], needed: Iterable[str]) -> Path | None:
    """The first of `root/name/inner` and `root/inner` that has all that is needed; None where there is none."""
    bases = [*(root / name for name in names), root]
    wanted = list(needed)
    homes = (base / place for base in bases for place in inner)
    return next((home for home in homes if all((home / name).exists() for name in wanted)), None)


def scan_domain(
    home: Path, folder: str, parts: Mapping[str, str], title: str
) -> tuple[list[File], list[str]]:
    """The images of `home/folder/<class>/*`, or of its parts; and the files that are not images."""
    found: list[File] = []
    ignored: list[str] = []
    here = {name: part for name, part in parts.items() if (home / folder / name).is_dir()}
    for place, part in ({f"{folder}/{name}": part for name, part in here.items()} or {folder: ""}).items():
        files, others = scan_classes(home, place, part)
        found, ignored = found + files, ignored + others
    if not found:
        raise UserError(f"{title} in {home} has no image in {folder}/<class>/; unpack it again")
    return found, ignored


def require_classes(files: Mapping[str, Sequence[File]], known: Sequence[str], title: str) -> None:
    """Refuse folders that are not classes of this dataset."""
    strangers = sorted({file.label for members in files.values() for file in members} - set(known))
    if strangers:
        raise UserError(
            f"{title} has no classes {few(strangers)}: remove these folders, or name it by its path"
        )


def lines_of_list(path: Path, title: str) -> list[str]:
    """The images of an official list, whose lines are `domain/class/name.jpg label`."""
    try:
        lines = untrusted.read_text(path, untrusted.TABLE_BYTES).splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}; put all twelve lists of {title} beside it, or none") from error
    return [line.rsplit(maxsplit=1)[0].strip() for line in lines if line.strip()]


def rows_of(path: Path, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    """The lines of a CSV file that must have these columns."""
    try:
        text = untrusted.read_text(path, untrusted.TABLE_BYTES)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path} ({error}); unpack it again") from error
    reader = csv.DictReader(io.StringIO(text, newline=""))
    if lacking := [name for name in columns if name not in (reader.fieldnames or ())]:
        raise UserError(f"{path} has no column {', '.join(lacking)}; unpack it again")
    for row in reader:
        if any(row[name] is None for name in columns):
            raise UserError(f"{path}, line {reader.line_num}: it was cut off; unpack it again")
        yield row


def require_files(home: Path, names: Iterable[str], title: str) -> None:
    """Refuse a list of images of which some are not there. Folders are listed; no file is looked at by itself."""
    by_folder: dict[str, set[str]] = {}
    for name in names:
        folder, _, file = name.rpartition("/")
        by_folder.setdefault(folder, set()).add(file)
    absent: list[str] = []
    for folder, wanted in by_folder.items():
        try:
            with os.scandir(home / folder) as entries:
                there = {entry.name for entry in entries}
        except OSError:
            there = set()
        absent += sorted(f"{folder}/{file}" for file in wanted - there)
    if absent:
        raise UserError(f"{title} in {home} lacks {len(absent):,} images: {few(absent)}; unpack it again")


def few(names: Sequence[str]) -> str:
    """The first of many names."""
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
