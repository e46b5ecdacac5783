"""The page: whole, well-formed, escaped, alone, and the same each time."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from metavib import __version__
from metavib.reports.figure import Figure, Missing, drawing
from metavib.reports.page import Page, Section, facts, with_own_names
from metavib.runs.records import Group, LeftOutRun

VOID = {"meta", "link", "br", "img"}


class Structure(HTMLParser):
    """Checks that tags are closed in order, and collects ids and what is asked for from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(str(value))
            elif name in ("href", "src", "xlink:href"):
                self.addresses.append(str(value))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def a_bar(canvas: Any) -> None:
    canvas.subplots().bar([0, 1], [1.0, 2.0], hatch="//")


FIGURE = Figure(
    "bars", "Bars", "See <b>two</b> bars.", "Two bars", drawing("bars", a_bar), ("x",), ((1,), (2,))
)
MISSING = Missing("embedding", "Embedding", "Train <again> to get it.")


@pytest.fixture
def page(record: Callable[..., Any]) -> Page:
    """Two groups, the first with all there can be."""
    unseen = {"class_averaged_accuracy": {"mean": 0.5, "deviation": 0.0}}
    runs = tuple(record(name, results={"unseen": unseen}) for name in ("erm", "metavib"))
    groups = [Group(name, "p", ("a", "b"), runs) for name in ("pacs & <more>", "others")]
    sections = (
        Section(groups[0], (FIGURE, MISSING), (LeftOutRun(Path("some/run"), "the model is gone"),)),
        Section(groups[1], (FIGURE,)),
    )
    return Page(sections, (LeftOutRun(Path("runs/<half>"), "is not finished"),))


def test_the_same_runs_give_the_same_text(page):
    assert page.html() == page.html()


def test_the_page_is_well_formed_and_every_link_inside_has_its_place(page):
    structure = Structure(page.html())
    assert structure.open == []
    assert len(structure.ids) == len(set(structure.ids))
    inside = [address[1:] for address in structure.addresses if address.startswith("#")]
    assert inside
    assert set(inside) <= set(structure.ids)


def test_nothing_is_asked_for_from_elsewhere_and_one_script_alone_may_run(page):
    text = page.html()
    structure = Structure(text)
    assert all(address.startswith(("#", "data:")) for address in structure.addresses)
    assert structure.tags.count("script") == 1
    script = text.partition("<script>")[2].partition("</script>")[0]
    hashed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{hashed}'" in text
    assert not re.search(r"\son[a-z]+=", text.replace(script, ""))
    assert "default-src 'none'" in text
    assert not re.search(r"@import|url\((?!#)", text)


def test_names_cannot_put_markup_into_the_page(page):
    text = page.html()
    assert "pacs &amp; &lt;more&gt;" in text
    assert "<more>" not in text
    assert "See &lt;b&gt;two&lt;/b&gt; bars." in text
    assert "runs/&lt;half&gt;" in text
    assert "Train &lt;again&gt; to get it." in text


def test_a_figure_has_caption_alternative_and_its_files(page):
    text = page.html()
    assert text.count('aria-label="Two bars"') == 2  # once in each group
    files = dict(re.findall(r'download="([^"]+)" href="data:[^,]+;base64,([^"]+)"', text))
    assert base64.b64decode(files["bars.csv"]).decode() == "x\n1\n2\n"
    assert base64.b64decode(files["bars.svg"]).decode() == FIGURE.svg
    assert base64.b64decode(files["table-class-averaged-accuracy.csv"]).startswith(b"row,unseen")


def test_the_answer_comes_first_then_one_table_and_all_else_is_folded(page):
    text = page.html()
    places = [text.index(words) for words in ("What to expect on a new domain", "Unseen images</h3>")]
    places += [text.index('class="table measures"'), text.index('<details class="part">')]
    assert places == sorted(places)
    group = text.partition('id="runs-1"')[2].partition('id="runs-2"')[0]
    assert group.count('<table class="sortable">') == 1  # of all measures; there are no classes here
    assert group.count("<tbody id=") == 1
    figure = group.index('aria-label="Two bars"')
    assert group.rfind("<details", 0, figure) > group.rfind("</details>", 0, figure)


def test_a_page_without_answers_says_why_there_is_no_gallery(page):
    assert "the model is gone" in page.html().partition("Unseen images</h3>")[2].partition("</figure>")[0]


def test_problems_and_the_version_are_named_and_no_date(page):
    text = page.html()
    assert "Not in this report" in text
    assert "the model is gone" in text
    assert f"Made by metavib {__version__}." in text
    assert "Not in this report" not in Page(page.sections[1:]).html()


def test_parts_of_a_drawing_get_names_of_their_own():
    svg = '<svg id="a"><use xlink:href="#b"/><g clip-path="url(#c)" grid="d"/></svg>'
    own = '<svg id="x-a"><use xlink:href="#x-b"/><g clip-path="url(#x-c)" grid="d"/></svg>'
    assert with_own_names(svg, "x") == own


def test_facts_name_what_the_runs_are_and_count_what_is_many(record):
    runs = tuple(record("erm", "0", seed) for seed in range(20))
    found = dict(facts(Group("d", "p", ("a",), runs)))
    assert found["seeds"] == "20: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ..."
    assert found["network"] == "digits (weights: none)"
    assert found["steps"] == "300"
