"""The pages that people read: links and anchors lead somewhere, tables are whole, words are spelt."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import ROOT

PAGES = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")} - {*ROOT.glob("docs/_build/**/*.md")})
NOTEBOOKS = sorted(ROOT.glob("docs/tutorials/*.ipynb"))
# Names, terms of the field and words of ours, which no dictionary has.
OWN_WORDS = set((ROOT / "docs/dictionary.txt").read_text().split())


def text_of(path: Path) -> str:
    """The text of a page; of a notebook, that of its cells of text."""
    if path.suffix == ".md":
        return path.read_text()
    cells = json.loads(path.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def without_code(text: str) -> str:
    """The text without blocks of code; what is within a line stays."""
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors_of(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them: the second of its name ends in -1."""
    found: set[str] = set()
    counted: Counter[str] = Counter()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", without_code(text), flags=re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.add(f"{slug}-{counted[slug]}" if counted[slug] else slug)
        counted[slug] += 1
    return found


def links_of(text: str) -> list[str]:
    """Where the links and pictures of a page lead, but for other hosts."""
    links = re.findall(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)", without_code(text))
    return [link for link in links if not re.match(r"[a-z]+:", link)]


def dead_links(path: Path, text: str) -> list[str]:
    """The links that lead to no file, or to no heading of it."""
    found = []
    for link in links_of(text):
        name, _, anchor = link.partition("#")
        to = path.parent / name if name else path
        there = to.exists() and (not anchor or to.suffix != ".md" or anchor in anchors_of(to.read_text()))
        if not there:
            found.append(link)
    return found


def broken_tables(text: str) -> list[str]:
    """The first rows of tables without a rule below them, and the rows that are not as wide as the first."""
    found = []
    for table in re.findall(r"(?:^ *\|.*\n)+", without_code(text) + "\n", flags=re.MULTILINE):
        rows = [row.strip() for row in table.splitlines()]
        if len(rows) < 2 or not re.fullmatch(r"[|:\- ]+", rows[1]):
            found.append(rows[0])
        found += [row for row in rows if cells_of(row) != cells_of(rows[0])]
    return found


def cells_of(row: str) -> int:
    """How many cells a row has. A bar that is escaped divides nothing."""
    return len(re.findall(r"(?<!\\)\|", row)) - 1


def words_of(text: str) -> Iterator[str]:
    """The words of a text: no code, addresses, records, names with capitals within, or pieces of numbers."""
    text = re.sub(r"<!-- table: .*?<!-- end -->", "", without_code(text), flags=re.DOTALL)
    text = re.sub(
        r"<!--.*?-->|`[^`]*`|\]\([^)]*\)|<[^>]+>|\bhttps?:\S+|\$[^$]*\$", " ", text, flags=re.DOTALL
    )
    for word in re.findall(r"(?<![\w.\\-])[A-Za-z]+(?:'[a-z]+)?(?![\w])", text):
        if len(word) > 2 and word[1:] == word[1:].lower():
            yield word.removesuffix("'s").lower()


@pytest.mark.parametrize("path", [*PAGES, *NOTEBOOKS], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_anchors_lead_somewhere(path: Path) -> None:
    assert dead_links(path, text_of(path)) == []


@pytest.mark.parametrize("path", [*PAGES, *NOTEBOOKS], ids=lambda path: str(path.relative_to(ROOT)))
def test_the_rows_of_a_table_have_as_many_cells_as_its_head(path: Path) -> None:
    assert broken_tables(text_of(path)) == []


def test_words_are_those_of_the_dictionary_or_of_our_list() -> None:
    spelling = pytest.importorskip("spellchecker", reason="no pyspellchecker: pip install pyspellchecker")
    places: dict[str, str] = {}
    for path in [*PAGES, *NOTEBOOKS]:
        places.update(dict.fromkeys(words_of(text_of(path)), path.name))
    unknown = spelling.SpellChecker(language="en").unknown(places.keys() - OWN_WORDS)
    assert {word: places[word] for word in unknown} == {}, "misspelt, or a word for docs/dictionary.txt"
    assert len(places) > 2000


def test_a_word_that_is_misspelt_is_noticed() -> None:
    spelling = pytest.importorskip("spellchecker", reason="no pyspellchecker: pip install pyspellchecker")
    text = "A clasifier of PACS, in `cod` and [seen](not/sen.md), that's 3px wide.\n"  # codespell:ignore
    text += "```\nqwertz\n```\n"
    words = set(words_of(text))
    assert words == {"clasifier", "and", "seen", "that", "wide"}  # codespell:ignore
    assert spelling.SpellChecker(language="en").unknown(words) == {"clasifier"}  # codespell:ignore


def test_dead_links_are_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = (
        "# What is `it`?\n[a](#what-is-it)[b](#nowhere)[c](page.md#what-is-it)[d](gone.md)\n"
        "## Again\n## Again\n[e](#again-1)[f](#again-2)\n```\n[g](gone.md)\n```\n"
    )
    page.write_text(text)
    assert dead_links(page, text) == ["#nowhere", "gone.md", "#again-2"]


def test_broken_tables_are_noticed() -> None:
    whole = "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 \\| 5 |\n"
    assert broken_tables(whole) == []
    assert broken_tables(f"{whole}\n| 7 | 8 |\n") == ["| 7 | 8 |"]
    assert broken_tables(f"{whole}| 6 |\n") == ["| 6 |"]
