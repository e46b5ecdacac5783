"""Labelled images of several domains in Parquet files, as Hugging Face `datasets` writes them.

Of the files the data is read and nothing else: no code comes with them. Images keep their bytes. pyarrow alone is
needed: `datasets` itself would add a second copy of the images, and caches that are pickles.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

from metavib.core.errors import UserError, require_installed
from metavib.core.untrusted import opener
from metavib.data.file_dataset import PARTS
from metavib.data.sources.hugging_face import TABLE
from metavib.data.sources.manifest import COLUMNS

SPLIT = "split"  # as a column of domains: each split of the dataset is one
GUESSES = {
    "image": ("image", "img", "picture"),
    "label": ("label", "labels", "class", "category"),
    "domain": ("domain", "domains", "domain_name", "domain_id"),
}
ROWS = 64  # read at a time
IN_A_FOLDER = 1000  # images
SPLITS = {**PARTS, "validation": "crossval", "valid": "crossval", "dev": "crossval"}
# How the files of each kind of image begin.
_STARTS = {
    b"\xff\xd8\xff": "jpg",
    b"\x89PNG\r\n\x1a\n": "png",
    b"BM": "bmp",
    b"II*\0": "tif",
    b"MM\0*": "tif",
}


@final
class ColumnError(UserError):
    """Columns that have to be named by the user, or that there are not."""


class Columns(NamedTuple):
    """Which column holds what; None where it is to be guessed."""

    image: str | None = None
    label: str | None = None
    domain: str | None = None


class Part(NamedTuple):
    """A Parquet file, and the split that it belongs to."""

    path: Path
    split: str


class Written(NamedTuple):
    """Record of the written images: the columns, and the number of rows left out for want of a label."""

    columns: Columns
    images: int
    unlabelled: int


class _Row(NamedTuple):
    image: bytes
    label: str | None  # None where it has none
    domain: str
    split: str


def write_images(
    parts: Sequence[Part], folder: Path, wanted: Columns, told: Callable[[int], None] = lambda images: None
) -> Written:
    """Write every image into the folder, and a table beside them that says its label and domain."""
    require_installed("pyarrow", "datasets of the Hugging Face hub need pyarrow", extra="hf")
    lines: list[tuple[str, str, str, str]] = []
    unlabelled = 0
    columns = Columns()
    for part in parts:
        with open(part.path, "rb", opener=opener) as file:
            opened = _opened(file, part.path.name)
            features = _features_of(opened.schema_arrow)
            columns = chosen_columns(features, wanted)
            for row in _rows(opened, part, columns, features):
                if row.label is None:
                    unlabelled += 1
                    continue
                number = len(lines)
                name = f"images/{number // IN_A_FOLDER:04}/{number:07}.{_ending(row.image, number)}"
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                with open(folder / name, "wb", opener=opener) as out:
                    out.write(row.image)
                lines.append((name, row.label, row.domain, row.split))
                told(len(lines))
    with open(folder / TABLE, "w", encoding="utf-8", newline="", opener=opener) as out:
        writer = csv.writer(out, lineterminator="\n")
        by_parts = _has_parts(lines)
        writer.writerow([*COLUMNS, *([SPLIT] if by_parts else [])])
        writer.writerows((*line[:3], SPLITS[line[3]]) if by_parts else line[:3] for line in lines)
    return Written(columns, len(lines), unlabelled)


def chosen_columns(features: Mapping[str, Any], wanted: Columns) -> Columns:
    """The columns to take: those that were named, else those that can be told without doubt."""
    images = [name for name, feature in features.items() if _type_of(feature) == "Image"]
    image = _chosen("image", wanted.image, features, images)
    others = [name for name in features if name not in images]
    label = _chosen("label", wanted.label, features, [n for n in others if n in GUESSES["label"]])
    domain = wanted.domain
    if not (domain == SPLIT and SPLIT not in features):
        domain = _chosen("domain", domain, features, [n for n in others if n in GUESSES["domain"]])
    if label == domain:
        raise ColumnError(f"the column {label!r} cannot be both label and domain.{_listed(features)}")
    return Columns(image, label, domain)


def _chosen(role: str, named: str | None, features: Mapping[str, Any], likely: Sequence[str]) -> str:
    if named is not None:
        if named not in features:
            raise ColumnError(f"there is no column {named!r}.{_listed(features)}")
        return named
    if len(likely) == 1:
        return likely[0]
    known = [name for name in GUESSES[role] if name in likely][:1]
    if role == "image" and known:
        return known[0]
    also = ", or --domain-column split where each split is a domain" if role == "domain" else ""
    raise ColumnError(f"which column is the {role}? Name it by --{role}-column{also}.{_listed(features)}")


def _listed(features: Mapping[str, Any]) -> str:
    return " The columns are " + ", ".join(f"{name} ({_type_of(one)})" for name, one in features.items())


def _opened(file: Any, name: str) -> Any:
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{name} is damaged, or no Parquet file.") from error


def _features_of(schema: Any) -> dict[str, Any]:
    """The kind of each column: as `datasets` wrote it into the file, else by how it is stored."""
    told: Any = {}
    try:
        told = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError):
        told = {}
    stored = {field.name: {"_type": _stored_type(field.type)} for field in schema}
    return {
        name: told[name] if isinstance(told, dict) and isinstance(told.get(name), dict) else own
        for name, own in stored.items()
    }


def _stored_type(kind: Any) -> str:
    import pyarrow

    if pyarrow.types.is_struct(kind) and {"bytes", "path"} <= {field.name for field in kind}:
        return "Image"
    return str(kind)


def _type_of(feature: Mapping[str, Any]) -> str:
    kind = str(feature.get("_type", "nested"))
    return str(feature.get("dtype", kind)) if kind == "Value" else kind


def _rows(opened: Any, part: Part, columns: Columns, features: Mapping[str, Any]) -> Iterator[_Row]:
    import pyarrow

    image, label, domain = columns
    assert image is not None
    assert label is not None
    by_split = domain == SPLIT and SPLIT not in features
    read = [image, label] if by_split else [image, label, domain]
    try:
        for batch in opened.iter_batches(batch_size=ROWS, columns=read):
            for row in batch.to_pylist():
                where = part.split if by_split else _word(row[domain], features[str(domain)], str(domain))
                if where is None:
                    raise UserError(f"{part.path.name} has a row without a domain (column {domain!r}).")
                word = _word(row[label], features[label], label)
                yield _Row(_bytes_of(row[image], image), word, where, part.split)
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError(f"{part.path.name} is damaged ({str(error).splitlines()[0]}).") from error


def _bytes_of(value: Any, column: str) -> bytes:
    content = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(content, bytes) or not content:
        raise UserError(
            f"the column {column!r} has rows without an image in them: only its name, or nothing."
        )
    return content


def _word(value: Any, feature: Mapping[str, Any], column: str) -> str | None:
    """A label or domain as text; None where there is none, which -1 says too."""
    names = feature.get("names") if _type_of(feature) == "ClassLabel" else None
    if value is None or (names is not None and value == -1):
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise UserError(f"the column {column!r} holds {type(value).__name__}, not names or whole numbers.")
    if names is None:
        return str(value).strip()
    if not isinstance(value, int) or not 0 <= value < len(names):
        raise UserError(f"the column {column!r} has the number {value}, and only {len(names)} names.")
    return str(names[value]).strip()


def _ending(content: bytes, number: int) -> str:
    for start, ending in _STARTS.items():
        if content.startswith(start):
            return ending
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "webp"
    raise UserError(f"image {number} is none of JPEG, PNG, WebP, BMP and TIFF.")


def _has_parts(lines: Sequence[tuple[str, str, str, str]]) -> bool:
    """Whether every domain has images to train and to test with, as the splits call them."""
    found: dict[str, set[str]] = {}
    for _, _, domain, split in lines:
        found.setdefault(domain, set()).add(SPLITS.get(split, ""))
    return all({"train", "test"} <= parts and "" not in parts for parts in found.values()) and bool(found)
