"""A figure: the same bytes twice, its data as CSV, and its place in a page."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import metavib.reports
from metavib.reports.figure import DOTS_PER_INCH, INK, Figure, drawing, for_a_page, legend_below


def a_line(canvas: Any) -> None:
    axes = canvas.subplots()
    axes.plot([0, 1, 2], [3.0, 1.0, 2.0], label="a < b & c")
    axes.legend()


@pytest.fixture
def figure() -> Figure:
    drawn = drawing("line", a_line, width=3.0, height=2.0)
    return Figure(
        "line", "A line", "It goes down.", 'A "line" & more', drawn, ("x", "y"), ((0, 1 / 3), (1, None))
    )


def test_the_same_drawing_gives_the_same_bytes(figure):
    again = drawing("line", a_line, width=3.0, height=2.0)
    assert again == figure.svg
    assert again.png == figure.svg.png
    assert drawing("other", a_line, width=3.0, height=2.0) != figure.svg  # ids are its own


def test_nothing_in_a_drawing_tells_when_or_by_what_it_was_made(figure):
    assert "<dc:date>" not in figure.svg
    assert "atplotlib" not in figure.svg.replace("matplotlib.axis", "")
    assert Image.open(io.BytesIO(figure.svg.png)).info.keys() == {"dpi"}


def test_a_png_has_the_size_and_stands_on_white(figure):
    image = Image.open(io.BytesIO(figure.svg.png))
    assert image.size == (3 * DOTS_PER_INCH, 2 * DOTS_PER_INCH)
    assert image.convert("RGBA").getpixel((1, 1)) == (255, 255, 255, 255)


def test_the_data_is_csv_with_empty_cells_for_none(figure):
    assert figure.csv() == "x,y\n0,0.333333\n1,\n"


def test_in_a_page_it_is_as_wide_as_there_is_room_and_has_the_ink_of_the_text(figure):
    placed = for_a_page(figure.svg, figure.alternative)
    opening = placed[: placed.index(">")]
    assert "width=" not in opening
    assert "height=" not in opening
    assert 'viewBox="0 0 216 144"' in opening
    assert 'role="img" aria-label="A &quot;line&quot; &amp; more"' in opening
    assert INK in figure.svg
    assert INK not in placed
    assert "currentColor" in placed
    assert "a &lt; b &amp; c" in placed


def test_a_legend_lies_beside_the_axes_and_never_over_data():
    found = {}

    def draw(canvas):
        axes = canvas.subplots()
        for number in range(5):
            axes.plot([0, 1], [number, 5 - number], label=f"a long name of method {number}")
        legend_below(canvas, axes, columns=2)
        found["canvas"], found["axes"] = canvas, axes

    drawing("legend", draw, width=5.0, height=3.0)
    (legend,) = found["canvas"].legends
    assert not legend.get_window_extent().overlaps(found["axes"].get_window_extent())


def test_no_figure_puts_a_legend_into_its_axes():
    for path in Path(metavib.reports.__file__).parent.glob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            assert ".legend(" not in line or "canvas.legend(" in line or "bbox_to_anchor=(1.0" in line, path
