"""DomainNet (Peng et al., "Moment matching for multi-source domain adaptation", ICCV 2019) and its lists."""

from __future__ import annotations

from pathlib import Path

from metavib.core.errors import UserError
from metavib.data.dataset import Dataset
from metavib.data.file_dataset import File, FileDataset
from metavib.data.sources.published import home_of, lines_of_list, missing, require_files, scan_domain

DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
NAMES = ("domain-net", "domain_net", "domainnet", "DomainNet")


def open_domain_net(root: Path, *, protocol: str | None = None, seed: int = 0) -> Dataset:
    """clipart, infograph, painting, quickdraw, real and sketch; 345 classes.

    With the official lists sources train on their train list, and the unseen domain is tested on its test list.
    """
    home = home_of(root, NAMES, ("",), DOMAINS)
    if home is None:
        expected = f"{root}/domain-net/<domain>/<class>/* with the domains {', '.join(DOMAINS)}"
        raise missing("domain-net", "DomainNet", root, expected)
    lists = next((place for place in (home / "splits", home) if any(place.glob("*_train.txt"))), None)
    files, ignored = {}, []
    for domain in DOMAINS:
        if lists is None:
            files[domain], others = scan_domain(home, domain, {}, "DomainNet")
            ignored += others
        else:
            files[domain] = [
                File(name, name.split("/")[1], part)
                for part in ("train", "test")
                for name in _names_in(lists / f"{domain}_{part}.txt", domain)
            ]
            require_files(home, [file.path for file in files[domain]], "DomainNet")
    protocol = "stratified split" if lists is None else "official lists"
    return FileDataset("domain-net", home, files, protocol=protocol, ignored=ignored)


def _names_in(path: Path, domain: str) -> list[str]:
    """The images of a list, checked."""
    names = lines_of_list(path, "DomainNet")
    for number, name in enumerate(names, start=1):
        if name.count("/") != 2 or not name.startswith(f"{domain}/") or ".." in name:
            raise UserError(f"{path}, line {number}: expected {domain}/<class>/<image> and a label")
    if not names:
        raise UserError(f"{path} lists no image; download it again")
    return sorted(names)
