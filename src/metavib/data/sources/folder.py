"""Folders as datasets: `root/<domain>/<class>/*`, or `root/<domain>/{train,crossval,test}/<class>/*`."""

import re
from collections.abc import Sequence
from pathlib import Path

from metavib.core.errors import UserError
from metavib.data.dataset import Dataset
from metavib.data.decoding.images import EXTENSIONS
from metavib.data.file_dataset import PARTS, File, FileDataset

# Control characters, and bytes that are not UTF-8: no domain or class is named so.
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
NOT_UTF8 = re.compile("[\x00\ud800-\udfff]")  # the name of an image may have the others


def open_folder(root: Path) -> Dataset:
    """The dataset in a folder of domains."""
    domains = subfolders(root)
    expected = f"expected {root}/<domain>/<class>/*.jpg"
    if not domains:
        images = any(_is_image(path) for path in entries(root))
        problem = f"images lie directly in {root}" if images else f"{root} is empty: it has no domain folder"
        tables = [path.name for path in entries(root) if path.suffix.lower() in (".csv", ".jsonl")]
        remedy = f"; if {tables[0]} lists them, give that file: {root / tables[0]}" if tables else ""
        raise UserError(f"{problem}; {expected}{remedy}")
    files: dict[str, list[File]] = {}
    ignored: list[str] = []
    remarks = links_upward(root)
    for domain in domains:
        inside = subfolders(root / domain)
        if not inside and any(_is_image(path) for path in entries(root / domain)):
            raise UserError(f"images lie directly in {root / domain}; {expected}")
        files[domain] = []
        parts = inside if all(name in PARTS for name in inside) else [""]
        for part in parts:
            found, others = scan_classes(root, f"{domain}/{part}".rstrip("/"), PARTS.get(part, ""))
            files[domain] += found
            ignored += others
            remarks += remarks_on(root, f"{domain}/{part}".rstrip("/"), found)
        if not files[domain]:
            raise UserError(f"domain {domain!r} of {root} has no image in class folders; {expected}")
    return FileDataset(root.resolve().name, root, files, protocol="folder", ignored=ignored, remarks=remarks)


def scan_classes(root: Path, folder: str, part: str) -> tuple[list[File], list[str]]:
    """The images of `root/folder/<class>/*`, and the files beside them that are not images."""
    files, others = [], []
    for label in subfolders(root / folder):
        for path in entries(root / folder / label):
            name = f"{folder}/{label}/{path.name}"
            if _is_image(path):
                files.append(File(name, label, part))
            elif not path.is_dir():
                others.append(name)
    return files, others


def remarks_on(root: Path, folder: str, found: Sequence[File]) -> list[str]:
    """Remarks on `root/folder/<class>/*`: classes without an image, links that lead back."""
    known = {file.label for file in found}
    empty = [label for label in subfolders(root / folder) if label not in known]
    remarks = [f"class folder {folder}/{label} holds no image: the class is missing there" for label in empty]
    return [*remarks, *links_upward(root / folder)]


def subfolders(folder: Path) -> list[str]:
    """The names of the folders in a folder, sorted, without links to a folder around it."""
    found = [path for path in entries(folder) if path.is_dir() and not _leads_upward(path)]
    for path in found:
        if UNPRINTABLE.search(path.name):
            raise UserError(f"{path.name!r} in {folder} has a name that cannot be printed; rename it")
    return [path.name for path in found]


def links_upward(folder: Path) -> list[str]:
    """The links in a folder that lead back to it, or to a folder around it, in words."""
    return [
        f"{path} is a link to a folder that it lies in: it is passed over"
        for path in entries(folder)
        if _leads_upward(path)
    ]


def _leads_upward(path: Path) -> bool:
    if not path.is_symlink() or not path.is_dir():
        return False
    around = path.parent.resolve()
    return path.resolve() in (around, *around.parents)


def entries(folder: Path) -> list[Path]:
    """Entries of a folder without hidden files, sorted so that the file system does not matter."""
    try:
        found = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except FileNotFoundError as error:
        raise UserError(f"there is no folder {folder}; check the path") from error
    except NotADirectoryError as error:
        raise UserError(f"{folder} is not a folder; expected one with <domain>/<class>/*.jpg") from error
    except OSError as error:
        raise UserError(f"cannot look into {folder} ({error.strerror}); check its permissions") from error
    for path in found:
        if _is_image(path) and NOT_UTF8.search(path.name):
            raise UserError(f"{path.name!r} in {folder} has a name that is not UTF-8; rename it")
    return found


def _is_image(path: Path) -> bool:
    # A link to nowhere counts: it is then reported as a bad file, not lost without a word.
    return path.suffix.lower() in EXTENSIONS and not path.is_dir()
