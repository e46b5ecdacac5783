from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metavib.core.foreign_text import csv_cell, csv_cells, readable, readable_values, visible, visible_lines


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("Müller, 写真 \u00a0 °", "Müller, 写真 \u00a0 °"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x9b2J", "\\x9b2J"),
        ("a\nb\rc\td", "a\\nb\\rc\\td"),
        ("\u202egpj.exe", "\\u202egpj.exe"),
        ("line\u2028break", "line\\u2028break"),
        ("\udcff", "\\udcff"),
        ("\x00\x7f", "\\x00\\x7f"),
    ],
)
def test_what_cannot_be_seen_is_written_out(text: str, seen: str) -> None:
    assert visible(text) == seen


def test_lines_of_a_text_stay_lines() -> None:
    assert visible_lines("one\ntwo\x1b[m\r\n") == "one\ntwo\\x1b[m\\r\n"


@given(st.text(st.characters()))
def test_whatever_it_is_it_becomes_one_line_that_any_file_holds(text: str) -> None:
    shown = visible(text)
    shown.encode()
    assert len(shown.splitlines()) <= 1
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in shown)


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=cmd()", "'=cmd()"),
        ("+1+cmd()", "'+1+cmd()"),
        ("-2+3", "'-2+3"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\\t=1"),
        ("\r=1", "'\\r=1"),
        ("\uff1dcmd()", "'\uff1dcmd()"),
        ("cat=dog", "cat=dog"),
        ("'quoted", "'quoted"),
        ("", ""),
        ("-1", "-1"),
        ("+1.5e-3", "+1.5e-3"),
        ("-.5", "-.5"),
        ("-", "'-"),
    ],
)
def test_no_cell_is_a_formula_and_numbers_stay_numbers(text: str, cell: str) -> None:
    assert csv_cell(text) == cell


def test_of_a_row_only_texts_are_guarded() -> None:
    assert csv_cells(["=x", -1.5, 3, None]) == ["'=x", -1.5, 3, None]


@given(st.lists(st.text(st.characters()), min_size=1, max_size=4))
def test_a_row_is_read_back_with_as_many_cells_and_no_formula(row: list[str]) -> None:
    text = io.StringIO()
    csv.writer(text).writerow(csv_cells(row))
    (read,) = csv.reader(io.StringIO(text.getvalue()))
    assert len(read) == len(row)
    assert not any(cell[:1] in ("=", "@", "\t", "\r") for cell in read)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cat", "cat"),
        ("Katze é 猫 🐈", "Katze é 猫 🐈"),
        ("a\ud800b", "a\\ud800b"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\u202eb", "a\\u202eb"),
        ("a\nb\0", "a\\nb\\x00"),
        ("x" * 300, "x" * 199 + "…"),
    ],
)
def test_text_is_made_readable(text: str, shown: str) -> None:
    assert readable(text) == shown
    shown.encode()


def test_all_text_of_a_value_is_made_readable() -> None:
    assert readable_values({"\ud800": ["\0", 1, {"a": "\ud800"}]}) == {
        "\\ud800": ["\\x00", 1, {"a": "\\ud800"}]
    }
