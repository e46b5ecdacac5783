"""`metavib.manifest`: images that Python knows of already, as a file that `train` and every command take."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metavib.core import atomic
from metavib.core.errors import UserError
from metavib.data.sources.manifest import COLUMNS, open_manifest

Place = str | os.PathLike[str]


def manifest(source: Any, path: Place) -> Path:
    """Write a manifest (.csv) and give its path, for `metavib.train(path)` or `metavib train PATH`.

    `source` is a pandas table with the columns path, label, domain and, if wanted, split; or a dictionary that has
    a torchvision `ImageFolder` for each domain. Paths in a table are absolute, or relative to the current folder.
    What is wrong with it is a `UserError`, and then no file is written.
    """
    place = Path(path)
    if place.suffix.lower() != ".csv":
        raise UserError(f"a manifest is a .csv file, not {place.name!r}: name one, as images.csv.")
    rows = _of_folders(source) if isinstance(source, Mapping) else _of_table(source)
    lines = [[str(Path(row[0]).absolute()), *row[1:]] for row in rows]
    header = [*COLUMNS, "split"][: len(lines[0])] if lines else list(COLUMNS)
    text = ",".join(header) + "\n" + _plain_csv(lines)
    draft = place.with_name(f".{place.stem}.draft.csv")
    try:
        atomic.write_text(draft, text)
        open_manifest(draft)  # which says what is wrong, line by line
        atomic.write_text(place, text)
    except UserError as error:
        raise UserError(str(error).replace(str(draft), str(place))) from error
    finally:
        draft.unlink(missing_ok=True)
    return place


def _plain_csv(lines: list[list[str]]) -> str:
    import csv
    import io

    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue()


def _of_table(table: Any) -> list[list[str]]:
    """The rows of a pandas table."""
    names = list(getattr(table, "columns", ()))
    if lacking := [name for name in COLUMNS if name not in names]:
        raise UserError(
            f"a table needs the columns {', '.join(COLUMNS)}; this one has no {', '.join(lacking)}. Rename its "
            "columns."
        )
    wanted = [*COLUMNS, *(["split"] if "split" in names else [])]
    if table[wanted].isna().to_numpy().any():
        raise UserError(
            f"the table has empty cells among {', '.join(wanted)}: fill them in, or drop these rows."
        )
    return [[str(cell) for cell in row] for row in table[wanted].itertuples(index=False, name=None)]


def _of_folders(folders: Mapping[str, Any]) -> list[list[str]]:
    """The images of an `ImageFolder` for each domain."""
    rows = []
    for domain, folder in folders.items():
        if not hasattr(folder, "samples") or not hasattr(folder, "classes"):
            raise UserError(f"domain {domain!r} is {type(folder).__name__}, not a torchvision ImageFolder.")
        rows += [[path, folder.classes[label], str(domain)] for path, label in folder.samples]
    return rows
