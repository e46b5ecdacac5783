"""Office-Home (Venkateswara et al., "Deep hashing network for unsupervised domain adaptation", CVPR 2017)."""

from __future__ import annotations

from pathlib import Path

from metavib.data.dataset import Dataset
from metavib.data.file_dataset import PARTS, FileDataset
from metavib.data.sources.published import home_of, missing, scan_domain

# Domain: its folder where it has parts, as <domain>/{train,val}/<class>; else it is <domain>/<class>.
FOLDERS_WITH_PARTS = {
    "Art": "art",
    "Clipart": "clipart",
    "Product": "product",
    "Real World": "real_world",
}
NAMES = ("office-home", "office_home", "office_home_dg", "OfficeHome")
INNER = ("", "OfficeHomeDataset_10072016", "office_home_dg", "office_home")


def open_office_home(root: Path, *, protocol: str | None = None, seed: int = 0) -> Dataset:
    """Art, Clipart, Product and Real World; 65 classes of things in offices and homes."""
    with_parts = False
    home = home_of(root, NAMES, INNER, FOLDERS_WITH_PARTS)
    if home is None:
        with_parts = True
        home = home_of(root, NAMES, INNER, [f"{folder}/train" for folder in FOLDERS_WITH_PARTS.values()])
    if home is None:
        expected = f"{root}/office-home/<domain>/<class>/* with the domains {', '.join(FOLDERS_WITH_PARTS)}"
        raise missing("office-home", "Office-Home", root, expected)
    files, ignored = {}, []
    for domain, folder in FOLDERS_WITH_PARTS.items():
        parts = PARTS if with_parts else {}
        files[domain], others = scan_domain(home, folder if with_parts else domain, parts, "Office-Home")
        ignored += others
    protocol = "official parts" if with_parts else "stratified split"
    return FileDataset("office-home", home, files, protocol=protocol, ignored=ignored)
