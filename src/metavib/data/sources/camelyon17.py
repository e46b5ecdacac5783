"""Camelyon17 of WILDS (Bandi et al., IEEE TMI 2018; Koh et al., "WILDS", ICML 2021): five hospitals, two classes.

The official protocol tests on hospital 2 and leaves hospital 1 out of training: `--target hospital-2 --without
hospital-1`. The parts of the other hospitals are the official ones.
"""

from __future__ import annotations

from pathlib import Path

from metavib.core.errors import UserError
from metavib.data.dataset import Dataset
from metavib.data.file_dataset import File, FileDataset
from metavib.data.sources.published import home_of, missing, require_files, rows_of

COLUMNS = ("patient", "node", "x_coord", "y_coord", "tumor", "center", "split")
CLASSES = {"0": "normal", "1": "tumor"}
PARTS = {"0": "train", "1": "crossval"}
HOSPITALS = 5


def open_camelyon17(root: Path, *, protocol: str | None = None, seed: int = 0) -> Dataset:
    """Tissue from five hospitals, with tumor or not; official: --target hospital-2 --without hospital-1.

    The parts of a hospital are for training and validation; all images of the unseen one are tested.
    """
    names = ("camelyon17", "camelyon17_v1.0")
    home = home_of(root, names, ("", "camelyon17_v1.0"), ("metadata.csv", "patches"))
    if home is None:
        raise missing("camelyon17", "Camelyon17", root, f"{root}/camelyon17/metadata.csv and .../patches")
    files: dict[str, list[File]] = {f"hospital-{number}": [] for number in range(HOSPITALS)}
    table = home / "metadata.csv"
    for row in rows_of(table, COLUMNS):
        domain, part = f"hospital-{row['center']}", PARTS.get(row["split"])
        label = CLASSES.get(row["tumor"])
        slide = f"patient_{row['patient'].zfill(3)}_node_{row['node']}"
        if domain not in files or part is None or label is None or "/" in slide or ".." in slide:
            raise UserError(
                f"{table} has a line that is not of Camelyon17: {dict(row)!r:.120}; unpack it again"
            )
        name = f"patches/{slide}/patch_{slide}_x_{row['x_coord']}_y_{row['y_coord']}.png"
        files[domain].append(File(name, label, part))
    if absent := [domain for domain, members in files.items() if not members]:
        raise UserError(f"{table} has no image of {', '.join(absent)}; unpack it again")
    require_files(home, [file.path for members in files.values() for file in members], "Camelyon17")
    return FileDataset("camelyon17", home, files, protocol="WILDS parts")
