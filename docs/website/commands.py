"""The commands and their flags, from the parser."""

from __future__ import annotations

import argparse
import re

from metavib.interfaces.cli.parsing import parsers


def reference() -> str:
    """A section for each command: what it does, how it is called, every flag."""
    _, commands = parsers()
    return "\n\n".join(_section(name, parser) for name, parser in commands.items())


def _section(name: str, parser: argparse.ArgumentParser) -> str:
    formatter = parser._get_formatter()
    rows = [
        f"| {_called(action)} | {cell(formatter._expand_help(action))} |"
        for action in parser._actions
        if action.help and action.help != argparse.SUPPRESS and action.dest != "help"
    ]
    parts = [f"## metavib {name}", cell(parser.description or "")]
    if rows:
        parts.append("\n".join(["| argument | what it does |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def _called(action: argparse.Action) -> str:
    """A flag with its value, as it is typed."""
    value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    value = "" if action.nargs == 0 else value
    if not action.option_strings:
        return f"`{value}`"
    return ", ".join(f"`{f'{option} {value}'.strip()}`" for option in action.option_strings)


def cell(text: str) -> str:
    """Text that may stand in a cell of a Markdown table."""
    parts = " ".join(text.split()).replace("|", "\\|").split("`")
    plain = [re.sub(r"(?<![\w-])(--[a-z][\w-]*)", r"`\1`", part) for part in parts[::2]]
    parts[::2] = [part.replace("<", "&lt;").replace("*", "\\*") for part in plain]
    return "`".join(parts)
