"""iWildCam of WILDS 2.0 (Beery et al., 2020; Koh et al., "WILDS", ICML 2021): animals before 323 camera traps.

A camera that trains is a domain. The official unseen cameras are one domain, `test`, and those for validation out
of the distribution another, `val`: the official protocol is `--target test --without val`.
"""

from __future__ import annotations

from pathlib import Path

from metavib.core.errors import UserError
from metavib.data.dataset import Dataset
from metavib.data.file_dataset import File, FileDataset
from metavib.data.sources.published import home_of, missing, require_files, rows_of
from metavib.data.splits import natural_order

PARTS = {"train": "train", "id_val": "crossval", "id_test": "test"}  # of the cameras that train
UNSEEN = ("val", "test")  # cameras that are one domain together
NAMES = ("iwildcam", "iwildcam_v2.0")


def open_iwildcam(root: Path, *, protocol: str | None = None, seed: int = 0) -> Dataset:
    """Animals before camera traps, 182 classes; official: --target test --without val."""
    home = home_of(root, NAMES, ("", "iwildcam_v2.0"), ("metadata.csv", "train"))
    if home is None:
        raise missing("iwildcam", "iWildCam", root, f"{root}/iwildcam/metadata.csv and .../train")
    labels = _labels(home / "categories.csv")
    files: dict[str, list[File]] = {}
    table = home / "metadata.csv"
    for row in rows_of(table, ("split", "location_remapped", "y", "filename")):
        split, label = row["split"], labels.get(row["y"], f"class {row['y']}")
        if split not in (*PARTS, *UNSEEN) or "/" in row["filename"]:
            raise UserError(
                f"{table} has a line that is not of iWildCam: {dict(row)!r:.120}; unpack it again"
            )
        domain = split if split in UNSEEN else f"camera-{row['location_remapped']}"
        files.setdefault(domain, []).append(File(f"train/{row['filename']}", label, PARTS.get(split, "")))
    require_files(home, [file.path for members in files.values() for file in members], "iWildCam")
    learnt = {file.label for members in files.values() for file in members if file.part == "train"}
    kept = {domain: [file for file in members if file.label in learnt] for domain, members in files.items()}
    kept = {
        domain: members
        for domain, members in kept.items()
        if domain in UNSEEN or any(file.part == "train" for file in members)
    }
    if lost := sum(map(len, files.values())) - sum(map(len, kept.values())):
        remarks = [
            f"{lost:,} images are left out: of classes, or from cameras, that are in no training image"
        ]
    else:
        remarks = []
    in_order = {domain: sorted(kept[domain]) for domain in sorted(kept, key=natural_order) if kept[domain]}
    if not {"test"} <= in_order.keys():
        raise UserError(f"{table} has no image of the split 'test'; unpack it again")
    return FileDataset("iwildcam", home, in_order, protocol="WILDS cameras", remarks=remarks)


def _labels(path: Path) -> dict[str, str]:
    """The names of the classes by their number; none where the table is not there. No two have the same."""
    if not path.exists():
        return {}
    names = {row["y"]: row["name"].strip() for row in rows_of(path, ("y", "name"))}
    several = {name for name in names.values() if list(names.values()).count(name) > 1}
    return {
        number: f"{name} {number}" if name in several or not name else name for number, name in names.items()
    }
