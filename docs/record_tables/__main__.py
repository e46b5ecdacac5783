"""Fill in every document; say which changed."""

from __future__ import annotations

from record_tables.filling import documents, filled
from record_tables.records import ROOT

for path in documents():
    old = path.read_text()
    if (new := filled(old)) != old:
        path.write_text(new)
        print(f"{path.relative_to(ROOT)} is up to date now")
