"""Records as an enemy changes them: with a checksum that is right again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from metavib.core.json_record import checksum


def rewrite(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change a record, and make its checksum right again."""
    record = change(json.loads(path.read_text()))
    record.pop("check")
    path.write_text(json.dumps(record | {"check": checksum(record)}))
