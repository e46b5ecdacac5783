"""The door for text that others wrote: class names, file names and errors, on their way to what people look at.

A class may be named `\\x1b[2J`, which clears a terminal, `=cmd()`, which a spreadsheet computes, or by a character
that no page may hold.
"""

import re
from collections.abc import Iterable
from typing import Any

# Control characters, among them the escape that begins a terminal's commands; lone surrogates, which stand for
# bytes that are not UTF-8; what reorders or breaks lines unseen; and what no XML may hold.
_UNSEEN = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufffe\uffff"
LONGEST_SHOWN = 200  # characters of a name in a page or a figure
_IN_A_LINE = re.compile(f"[{_UNSEEN}]")
_IN_A_TEXT = re.compile(f"(?!\n)[{_UNSEEN}]")
_FORMULA = re.compile("[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")  # as OWASP lists them, full-width ones too
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def visible(text: str) -> str:
    """The text as one line that does nothing to a terminal: what cannot be seen is written as Python writes it."""
    return _IN_A_LINE.sub(_escaped, text)


def visible_lines(text: str) -> str:
    """The text with its line breaks; all else that cannot be seen is written as Python writes it."""
    return _IN_A_TEXT.sub(_escaped, text)


def readable(text: str) -> str:
    """The text as a page or a figure shows it: `visible`, and not too long."""
    shown = visible(text)
    return shown if len(shown) <= LONGEST_SHOWN else f"{shown[: LONGEST_SHOWN - 1]}…"


def readable_values(value: Any) -> Any:
    """A JSON value with all its text, also the names of its fields, made `readable`."""
    if isinstance(value, str):
        return readable(value)
    if isinstance(value, list):
        return [readable_values(one) for one in value]
    if isinstance(value, dict):
        return {readable(name): readable_values(one) for name, one in value.items()}
    return value


def csv_cells(row: Iterable[Any]) -> list[Any]:
    """A row of a CSV that does nothing to a spreadsheet. Numbers stay as they are."""
    return [csv_cell(value) if isinstance(value, str) else value for value in row]


def csv_text(header: Iterable[Any], rows: Iterable[Iterable[Any]]) -> str:
    """A whole CSV file that does nothing to a spreadsheet."""
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(csv_cells(header))
    writer.writerows(map(csv_cells, rows))
    return text.getvalue()


def csv_cell(text: str) -> str:
    """The text as a cell that no spreadsheet takes for a formula: OWASP's apostrophe stands before one.

    A text that is a number stays a number, with its sign.
    """
    guard = "'" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else ""
    return guard + visible(text)


def _escaped(found: re.Match[str]) -> str:
    return ascii(found.group())[1:-1]
