"""VLCS (Fang et al., "Unbiased metric learning", ICCV 2013), in either layout in which it is handed round."""

from pathlib import Path

from metavib.data.dataset import Dataset
from metavib.data.file_dataset import FileDataset
from metavib.data.sources.published import home_of, missing, require_classes, scan_domain

CLASSES = ("bird", "car", "chair", "dog", "person")
# Domain: its folder where it has parts, <domain>/{train,crossval,test}/<0..4>; else it is <domain>/<class>.
FOLDERS_WITH_PARTS = {"VOC2007": "PASCAL", "LabelMe": "LABELME", "Caltech101": "CALTECH", "SUN09": "SUN"}
PARTS = {
    name: name for name in ("train", "crossval", "test")
}  # some copies have "full" too: all three once more
NAMES, INNER = ("VLCS", "vlcs"), ("", "VLCS")
NUMBERED = {str(number): name for number, name in enumerate(CLASSES)}  # as the folders of parts have them


def open_vlcs(root: Path, *, protocol: str | None = None, seed: int = 0) -> Dataset:
    """VOC2007, LabelMe, Caltech101 and SUN09; 5 classes."""
    with_parts = False
    home = home_of(root, NAMES, INNER, FOLDERS_WITH_PARTS)
    if home is None:
        with_parts = True
        home = home_of(root, NAMES, INNER, [f"{folder}/train" for folder in FOLDERS_WITH_PARTS.values()])
    if home is None:
        expected = (
            f"{root}/VLCS/<domain>/<class>/* with the domains {', '.join(FOLDERS_WITH_PARTS)}, or "
            f"{root}/VLCS/<domain>/<part>/<0..4>/* with the folders {', '.join(FOLDERS_WITH_PARTS.values())}"
        )
        raise missing("vlcs", "VLCS", root, expected)
    files, ignored = {}, []
    for domain, folder in FOLDERS_WITH_PARTS.items():
        found, others = scan_domain(
            home, folder if with_parts else domain, PARTS if with_parts else {}, "VLCS"
        )
        ignored += others
        files[domain] = [file._replace(label=NUMBERED.get(file.label, file.label)) for file in found]
    require_classes(files, CLASSES, "VLCS")
    protocol = "official parts" if with_parts else "stratified split"
    return FileDataset("vlcs", home, files, protocol=protocol, ignored=ignored)
