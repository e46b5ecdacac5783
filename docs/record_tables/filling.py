"""Tables in their places.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; this fills it in. The tests fail where a document
differs from what this would write.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from record_tables import (
    accuracy,
    domainbed,
    faults,
    fields,
    figures,
    front_door,
    growth,
    prediction,
    rounds,
    speed,
    uncertainty,
    wins,
)
from record_tables.records import ROOT

TABLES: dict[str, Callable[[], str]] = (
    accuracy.TABLES
    | speed.TABLES
    | growth.TABLES
    | figures.TABLES
    | front_door.TABLES
    | faults.TABLES
    | fields.TABLES
    | prediction.TABLES
    | domainbed.TABLES
    | uncertainty.TABLES
    | rounds.TABLES
    | wins.TABLES
)


def filled(text: str) -> str:
    """The document with its tables as the records have them."""

    def fill(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in TABLES:
            raise SystemExit(f"there is no table {name!r}: {', '.join(TABLES)}")
        return f"<!-- table: {name} -->\n{TABLES[name]()}\n<!-- end -->"

    return re.sub(r"<!-- table: ([^>]+?) -->\n.*?<!-- end -->", fill, text, flags=re.DOTALL)


def documents() -> list[Path]:
    """All pages that may hold tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
