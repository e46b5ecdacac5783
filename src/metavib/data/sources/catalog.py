"""Datasets by name, or by the path of a folder or a manifest."""

import os
from collections.abc import Callable
from pathlib import Path

from metavib.core.errors import UserError, unknown_name
from metavib.data.dataset import Dataset
from metavib.data.sources.camelyon17 import open_camelyon17
from metavib.data.sources.digits_dg import open_digits_dg
from metavib.data.sources.domain_net import open_domain_net
from metavib.data.sources.folder import open_folder
from metavib.data.sources.hugging_face import PREFIX, open_hugging_face
from metavib.data.sources.iwildcam import open_iwildcam
from metavib.data.sources.manifest import MANIFEST_NAMES, MANIFEST_SUFFIXES, manifest_name, open_manifest
from metavib.data.sources.office_home import open_office_home
from metavib.data.sources.pacs import open_pacs
from metavib.data.sources.rotated import open_rotated_digits, open_rotated_mnist
from metavib.data.sources.terra_incognita import open_terra_incognita
from metavib.data.sources.vlcs import open_vlcs

# Each is opened by (data root, protocol, seed); its docstring is what `metavib describe` says of it.
DATASETS: dict[str, Callable[..., Dataset]] = {
    "rotated-digits": open_rotated_digits,
    "rotated-mnist": open_rotated_mnist,
    "pacs": open_pacs,
    "vlcs": open_vlcs,
    "office-home": open_office_home,
    "terra-incognita": open_terra_incognita,
    "domain-net": open_domain_net,
    "digits-dg": open_digits_dg,
    "camelyon17": open_camelyon17,
    "iwildcam": open_iwildcam,
}
NAMES = tuple(DATASETS)


def open_dataset(name: str, *, data_root: Path | None, protocol: str | None, seed: int) -> Dataset:
    """The dataset of that name, or at that path. Opens no image."""
    root = data_root or default_data_root()
    known = DATASETS.get(name)
    if known is not None:
        dataset = known(root, protocol=protocol, seed=seed)
    else:
        dataset = open_hugging_face(name, root) if name.startswith(PREFIX) else _open_path(name, root)
    own = dataset.protocol.partition(":")[0]
    if protocol is not None and protocol != own:
        raise unknown_name(f"protocol of {name}", protocol, (own,))
    return dataset


def short_name(name: str) -> str:
    """A word for a dataset: its known name, or the last part of its path."""
    path = Path(name)
    if name.startswith(PREFIX):
        return path.name
    return manifest_name(path) if path.suffix.lower() in MANIFEST_SUFFIXES else path.stem


def default_data_root() -> Path:
    """Where known datasets lie, unless a command says otherwise."""
    given = os.environ.get("METAVIB_DATA")
    return Path(given) if given else Path.home() / ".local" / "share" / "metavib"


def found_again(name: str, root: Path) -> Path:
    """The path of this name; where nothing is there any more, what has the same name in the data folder.

    Records name datasets and weights by the path at which a run found them. They may have been moved since.
    """
    path = Path(name).expanduser()
    moved = root / path.name
    return moved if path.is_absolute() and not path.exists() and moved.exists() else path


def _open_path(name: str, root: Path) -> Dataset:
    path = found_again(name, root)
    if path.is_dir():
        manifest = next((path / known for known in MANIFEST_NAMES if (path / known).is_file()), None)
        return open_manifest(manifest) if manifest else open_folder(path)
    if path.suffix.lower() in MANIFEST_SUFFIXES:
        return open_manifest(path)
    if path.exists():
        raise UserError(f"{path} is neither a folder nor a manifest (.csv or .jsonl)")
    if path.is_absolute():
        raise UserError(
            f"there is no folder {path}. If it was moved, name the folder around it: --data FOLDER, with a "
            f"folder {path.name!r} in it."
        )
    raise UserError(
        f"{unknown_name('dataset', name, NAMES)}, a path to a folder that exists, or hf:OWNER/NAME"
    )
