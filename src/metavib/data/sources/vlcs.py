"""VLCS (Fang et al., "Unbiased metric learning", ICCV 2013), in either layout in which it is handed round."""

from pathlib import Path

from metavib.core.errors import UserError
from metavib.data.dataset import Dataset
from metavib.data.file_dataset import File, FileDataset
from metavib.data.sources.folder import scan_classes
from metavib.data.sources.published import missing

CLASSES = ("bird", "car", "chair", "dog", "person")
# Domain: its folder where it has parts, <domain>/{train,crossval,test}/<0..4>; else it is <domain>/<class>.
FOLDERS_WITH_PARTS = {"VOC2007": "PASCAL", "LabelMe": "LABELME", "Caltech101": "CALTECH", "SUN09": "SUN"}
PARTS = ("train", "crossval", "test")  # some copies have "full" beside them: all three once more


def open_vlcs(root: Path, *, protocol: str | None = None, seed: int = 0) -> Dataset:
    """VOC2007, LabelMe, Caltech101 and SUN09; 5 classes."""
    bases = (root / "VLCS", root / "vlcs", root)
    for home in (place for base in bases for place in (base, base / "VLCS")):
        if all((home / domain).is_dir() for domain in FOLDERS_WITH_PARTS):
            return _open(home, with_parts=False)
        if all((home / folder / "train").is_dir() for folder in FOLDERS_WITH_PARTS.values()):
            return _open(home, with_parts=True)
    expected = (
        f"{root}/VLCS/<domain>/<class>/* with the domains {', '.join(FOLDERS_WITH_PARTS)}, or "
        f"{root}/VLCS/<domain>/<part>/<0..4>/* with the folders {', '.join(FOLDERS_WITH_PARTS.values())}"
    )
    raise missing("vlcs", "VLCS", root, expected)


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
                        f"{home / file.path}: {file.label!r} is not a class of VLCS; remove its folder"
                    )
                files[domain].append(file._replace(label=names[file.label]))
        if not files[domain]:
            raise UserError(f"VLCS in {home} has no image of domain {domain!r}; unpack it again")
    protocol = "official parts" if with_parts else "stratified split"
    return FileDataset("vlcs", home, files, protocol=protocol, ignored=ignored)
