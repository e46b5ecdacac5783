"""The names that there are, and every setting with what it takes and means, from their declarations."""

from __future__ import annotations

from metavib.algorithms import ALGORITHMS, title_of
from metavib.core.settings import Settings, describe
from metavib.interfaces.cli.descriptions import SECTIONS, overview
from website.commands import cell


def names() -> str:
    """A table for each kind of thing that is known by name."""
    kinds = {kind: entries for kind, entries in overview().items() if kind != "settings"}
    return "\n\n".join(f"## {kind.capitalize()}\n\n{_names(entries)}" for kind, entries in kinds.items())


def _names(entries: dict[str, str]) -> str:
    rows = [f"| `{name}` | {cell(line)} |" for name, line in entries.items()]
    return "\n".join(["| name | what it is |", "|---|---|", *rows])


def reference() -> str:
    """A section for each owner of settings."""
    parts = [_section(name.capitalize(), kind) for name, kind in SECTIONS.items()]
    for name, kind in ALGORITHMS.items():
        page = f"`--algorithm {name}`. [About this method](/algorithms/{name}.md)."
        parts.append(_section(title_of(name), kind.Config(), page))
    return "\n\n".join(parts)


def _section(title: str, own: Settings, about: str = "") -> str:
    rows = [
        f"| `{one.name}` | `{one.default}` | {cell(one.takes)} | {cell(one.meaning)} |"
        for one in describe(own)
    ]
    head = ["| setting | default | takes | meaning |", "|---|---|---|---|"]
    table = "\n".join([*head, *rows]) if rows else "It has no settings of its own."
    return "\n\n".join(filter(None, [f"## {title}", about, table]))
