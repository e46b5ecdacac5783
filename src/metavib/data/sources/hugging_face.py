"""Datasets of the Hugging Face hub by name, `hf:OWNER/NAME`: images and a table, as `metavib fetch` left them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from metavib.core.errors import UserError
from metavib.data.dataset import Dataset
from metavib.data.sources.manifest import open_manifest
from metavib.data.sources.published import MissingDataError

PREFIX = "hf:"
TABLE = "data.csv"
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"


class Repository(NamedTuple):
    """A dataset of the hub."""

    owner: str
    name: str

    def __str__(self) -> str:
        return f"{self.owner}/{self.name}"

    def place(self, root: Path) -> Path:
        """Where its images lie in the data folder."""
        return root / "hf" / self.owner / self.name


def repository_of(name: str) -> Repository:
    """The repository that `hf:OWNER/NAME` names."""
    found = re.fullmatch(rf"{PREFIX}({_PART})/({_PART})", name)
    if found is None:
        raise UserError(f"{name!r} is no dataset of the Hugging Face hub: write hf:OWNER/NAME.")
    return Repository(found[1], found[2])


def open_hugging_face(name: str, root: Path) -> Dataset:
    """The dataset that was fetched from the hub. Opens no image."""
    repository = repository_of(name)
    table = repository.place(root) / TABLE
    if not table.is_file():
        raise MissingDataError(
            name,
            f"{repository} of the Hugging Face hub is not in {root}: fetch it by `metavib fetch {name}`, or say "
            "where it is by --data DIR or METAVIB_DATA",
        )
    return open_manifest(table)
