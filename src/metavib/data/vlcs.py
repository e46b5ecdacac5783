"""VLCS (Fang et al., "Unbiased metric learning", ICCV 2013), in either layout in which it is handed round."""

from __future__ import annotations

from pathlib import Path

from metavib.data.dataset import Dataset, File, FileDataset
from metavib.data.folder import scan_classes
from metavib.errors import UserError

CLASSES = ("bird", "car", "chair", "dog", "person")
# Domain: its folder where it has parts, <domain>/{train,crossval,test}/<0..4>; else it is <domain>/<class>.
FOLDERS_WITH_PARTS = {"VOC2007": "PASCAL", "LabelMe": "LABELME", "Caltech101": "CALTECH", "SUN09": "SUN"}
PARTS = ("train", "crossval", "test")  # some copies have "full" beside them: all three once more


def open_vlcs(root: Path) -> Dataset:
    """VLCS below a data folder."""
    for home in (root / "VLCS", root / "vlcs", root):
        if all((home / domain).is_dir() for domain in FOLDERS_WITH_PARTS):
            return _open(home, with_parts=False)
        if all((home / folder / "train").is_dir() for folder in FOLDERS_WITH_PARTS.values()):
            return _open(home, with_parts=True)
    raise UserError(
        f"VLCS is not in {root}: expected {root}/VLCS/<domain>/<class>/* with the domains "
        f"{', '.join(FOLDERS_WITH_PARTS)}, or {root}/VLCS/<domain>/<part>/<0..4>/* with the folders "
        f"{', '.join(FOLDERS_WITH_PARTS.values())}; say where it is by --data DIR or METAVIB_DATA"
    )


def _open(home: Path, *, with_parts: bool) -> Dataset:
    names = {str(number): name for number, name in enumerate(CLASSES)} | {name: name for name in CLASSES}
    files: dict[str, list[File]] = {}
    ignored: list[str] = []
    for domain, folder in FOLDERS_WITH_PARTS.items():
        files[domain] = []
        parts = [part for part in PARTS if (home / folder / part).is_dir()] if with_parts else [""]
        for part in parts:
            found, others = scan_classes(home, f"{folder}/{part}" if with_parts else domain, part)
            ignored += others
            for file in found:
                if file.label not in names:
                    raise UserError(
                        f"{home / file.path}: {file.label!r} is no class of VLCS; remove its folder"
                    )
                files[domain].append(file._replace(label=names[file.label]))
        if not files[domain]:
            raise UserError(f"VLCS in {home} has no image of domain {domain!r}; unpack it again")
    protocol = "official parts" if with_parts else "stratified split"
    return FileDataset("vlcs", home, files, protocol=protocol, ignored=ignored)
