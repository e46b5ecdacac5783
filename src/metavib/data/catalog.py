"""Datasets by name, or by the path of a folder or a manifest."""

from __future__ import annotations

import os
from pathlib import Path

from metavib.data.dataset import Dataset
from metavib.data.folder import open_folder
from metavib.data.manifest import MANIFEST_NAMES, MANIFEST_SUFFIXES, manifest_name, open_manifest
from metavib.data.pacs import open_pacs
from metavib.data.rotated import PROTOCOLS, open_rotated_digits, open_rotated_mnist
from metavib.data.vlcs import open_vlcs
from metavib.errors import UserError, unknown_name

NAMES = ("rotated-digits", "rotated-mnist", "pacs", "vlcs")


def open_dataset(name: str, *, data_root: Path | None, protocol: str | None, seed: int) -> Dataset:
    """The dataset of that name, or at that path. Opens no image."""
    root = data_root or default_data_root()
    match name:
        case "rotated-mnist":
            _check_protocol(name, protocol, tuple(PROTOCOLS))
            return open_rotated_mnist(root, protocol or "paper", seed=seed)
        case "rotated-digits":
            dataset = open_rotated_digits(seed=seed)
        case "pacs":
            dataset = open_pacs(root)
        case "vlcs":
            dataset = open_vlcs(root)
        case _:
            dataset = _open_path(name)
    _check_protocol(name, protocol, (dataset.protocol.partition(":")[0],))
    return dataset


def short_name(name: str) -> str:
    """A word for a dataset: its known name, or the last part of its path."""
    path = Path(name)
    return manifest_name(path) if path.suffix.lower() in MANIFEST_SUFFIXES else path.stem


def default_data_root() -> Path:
    """Where known datasets lie, unless a command says otherwise."""
    given = os.environ.get("METAVIB_DATA")
    return Path(given) if given else Path.home() / ".local" / "share" / "metavib"


def _open_path(name: str) -> Dataset:
    path = Path(name).expanduser()
    if path.is_dir():
        manifest = next((path / known for known in MANIFEST_NAMES if (path / known).is_file()), None)
        return open_manifest(manifest) if manifest else open_folder(path)
    if path.suffix.lower() in MANIFEST_SUFFIXES:
        return open_manifest(path)
    if path.exists():
        raise UserError(f"{path} is neither a folder nor a manifest (.csv or .jsonl)")
    raise UserError(f"{unknown_name('dataset', name, NAMES)}, or a path to a folder that exists")


def _check_protocol(name: str, protocol: str | None, own: tuple[str, ...]) -> None:
    if protocol is not None and protocol not in own:
        raise unknown_name(f"protocol of {name}", protocol, own)
