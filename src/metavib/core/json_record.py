"""JSON objects in files: read through the one door, with a format, and a checksum where one stands beside them.

A format is raised only where an older version would misread the record. A field that is added means something
where it is absent, and leaves the format as it is.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from metavib.core import untrusted
from metavib.core.errors import UserError, made_by_newer


def checksum(record: dict[str, Any]) -> str:
    """The sha256 of a record, which stands in its file beside it: a flipped bit does not go unnoticed."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def read_json(path: Path, *within: Path) -> dict[str, Any]:
    """A JSON object that a run or a model is described by; its file lies in one of the directories."""
    try:
        value = untrusted.json_in(path, untrusted.RECORD_BYTES, *(within or (path.parent,)))
    except FileNotFoundError as error:
        raise UserError(
            f"{path} is missing: {path.parent} is not a finished run or model directory."
        ) from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    except ValueError as error:
        raise UserError(
            f"{path} cannot be read: {error}. It is damaged or half written: copy {path.parent} again, or train "
            "again."
        ) from error
    if not isinstance(value, dict):
        raise UserError(f"{path} holds no JSON object. Copy {path.parent} again, or train again.")
    return value


def require_fields(record: Mapping[str, Any], path: Path, known: Collection[str]) -> None:
    """Refuse a record with a field that came after this version."""
    if unknown := [str(name) for name in record if name not in known]:
        raise made_by_newer(path, f"the field {unknown[0]!r:.50}")


def require_format(record: Mapping[str, Any], path: Path, newest: int, oldest: int = 1) -> None:
    """Refuse a record that another version of metavib wrote in a format that this one does not read."""
    found = record.get("format")
    if type(found) is not int or found < 1:
        raise UserError(
            f"{path} is damaged: its format is {found!r:.20}. Copy {path.parent} again, or train again."
        )
    if found > newest:
        raise UserError(
            f"{path} was written by a newer version of metavib (format {found}; this version reads up to "
            f"{newest}). Upgrade metavib, or train again elsewhere."
        )
    if found < oldest:
        raise UserError(
            f"{path} was written by an older version of metavib (format {found}; this version reads from "
            f"{oldest}). Go on with that version, or train again elsewhere."
        )
