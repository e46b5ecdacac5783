"""A table as a dataset: `data.csv` or `.jsonl` with path, label, domain and, if wanted, split."""

import csv
import io
import os
from collections.abc import Iterator
from pathlib import Path

from metavib.core import untrusted
from metavib.core.errors import UserError
from metavib.data.dataset import Dataset
from metavib.data.file_dataset import PARTS, File, FileDataset
from metavib.data.sources.folder import NOT_UTF8, UNPRINTABLE

MANIFEST_NAMES = ("data.csv", "data.jsonl")
MANIFEST_SUFFIXES = (".csv", ".jsonl")
COLUMNS = ("path", "label", "domain")

Fields = dict[str, object]


def open_manifest(path: Path) -> Dataset:
    """The dataset that a table describes; paths are absolute or relative to the table's folder."""
    root = path.parent
    files: dict[str, list[File]] = {}
    first_line: dict[str, int] = {}
    for line, fields in _rows(path):
        where = f"{path}, line {line}"
        name, label, domain = (_text(fields, column, where) for column in COLUMNS)
        name = _stable_name(root, name)
        if name in first_line:
            raise UserError(f"{where}: {name} is on line {first_line[name]} already; remove one of them")
        first_line[name] = line
        if not (root / name).is_file():
            raise UserError(f"{where}: there is no file {root / name}; paths start at {root}")
        files.setdefault(domain, []).append(File(name, label, _part(fields, where)))
    if not files:
        raise UserError(
            f"{path} lists no image; expected the columns {', '.join(COLUMNS)} and a line for each"
        )
    for domain, members in files.items():
        if len({file.part == "" for file in members}) > 1:
            raise UserError(
                f"{path}: domain {domain!r} has lines with a split and lines without; fill them in"
            )
    in_order = {domain: sorted(files[domain]) for domain in sorted(files)}  # whatever the order of the lines
    return FileDataset(manifest_name(path), root, in_order, protocol="manifest")


def manifest_name(path: Path) -> str:
    """The name of a manifest's dataset: that of its file, or of the folder where the file is named as usual."""
    return path.resolve().parent.name if path.name in MANIFEST_NAMES else path.stem


def _rows(path: Path) -> Iterator[tuple[int, Fields]]:
    """Each line's number and fields."""
    try:
        data = untrusted.read(path, untrusted.TABLE_BYTES)
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); check the path") from error
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: this is not UTF-8; save the file in that encoding") from error
    return _csv_rows(path, text) if path.suffix.lower() == ".csv" else _json_rows(path, text)


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, Fields]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [column.strip() for column in next(reader, [])]
        for column in COLUMNS:
            if column not in header:
                raise UserError(f"{path}, line 1: no column {column!r}; expected {', '.join(COLUMNS)}")
        for row in reader:
            if len(row) > len(header):
                raise UserError(f"{path}, line {reader.line_num}: more fields than columns; quote a comma")
            if row:
                yield reader.line_num, dict(zip(header, row, strict=False))
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: not CSV ({error})") from error


def _json_rows(path: Path, text: str) -> Iterator[tuple[int, Fields]]:
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        try:
            fields = untrusted.json_from(content)
        except ValueError as error:
            raise UserError(f"{path}, line {line}: not JSON ({error})") from error
        if not isinstance(fields, dict):
            raise UserError(f"{path}, line {line}: expected an object with {', '.join(COLUMNS)}")
        yield line, fields


def _text(fields: Fields, column: str, where: str) -> str:
    """A field that must be there. Numbers become text: labels are names here."""
    value = fields.get(column, "")
    text = str(value).strip() if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
    if not text:
        raise UserError(f"{where}: no {column}; give it as text or a number")
    if (NOT_UTF8 if column == "path" else UNPRINTABLE).search(text):
        raise UserError(f"{where}: {column} {text!r} has characters that cannot be printed; rename it")
    return text


def _part(fields: Fields, where: str) -> str:
    value = fields.get("split") or ""
    text = str(value).strip()
    if text and text not in PARTS:
        raise UserError(f"{where}: split {text!r} is unknown; expected one of {', '.join(PARTS)}, or nothing")
    return PARTS.get(text, "")


def _stable_name(root: Path, name: str) -> str:
    """Relative to the manifest's folder where it lies below it, so that the two can be moved together."""
    place = Path(os.path.normpath(name))
    return (place.relative_to(root.absolute()) if place.is_relative_to(root.absolute()) else place).as_posix()
