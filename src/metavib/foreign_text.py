"""The door for text that others wrote: class names, file names and errors, on their way to a terminal or a CSV.

A class may be named `\\x1b[2J`, which clears a terminal, or `=cmd()`, which a spreadsheet computes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

# Control characters, among them the escape that begins a terminal's commands; lone surrogates, which stand for
# bytes that are not UTF-8; and what reorders or breaks lines unseen.
_UNSEEN = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff"
_IN_A_LINE = re.compile(f"[{_UNSEEN}]")
_IN_A_TEXT = re.compile(f"(?!\n)[{_UNSEEN}]")
_FORMULA = re.compile("[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")  # as OWASP lists them, full-width ones too
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def visible(text: str) -> str:
    """The text as one line that does nothing to a terminal: what cannot be seen is written as Python writes it."""
    return _IN_A_LINE.sub(_escaped, text)


def visible_lines(text: str) -> str:
    """The same of a text that has lines, which stay."""
    return _IN_A_TEXT.sub(_escaped, text)


def csv_cells(row: Iterable[Any]) -> list[Any]:
    """A row of a CSV that does nothing to a spreadsheet. Numbers stay as they are."""
    return [csv_cell(value) if isinstance(value, str) else value for value in row]


def csv_cell(text: str) -> str:
    """The text as a cell that no spreadsheet takes for a formula: OWASP's apostrophe stands before one.

    A text that is a number stays a number, with its sign.
    """
    guard = "'" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else ""
    return guard + visible(text)


def _escaped(found: re.Match[str]) -> str:
    return ascii(found.group())[1:-1]
