"""A figure: a drawing with its caption, its data, and the words for those who cannot see it.

The same data gives the same bytes. In a page the ink takes the colour of the text around it, light or dark.
"""

from __future__ import annotations

import html
import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from metavib.core.errors import require_installed
from metavib.core.foreign_text import csv_text

# Okabe and Ito (2008): eight colours that people with any colour vision can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#7F7F7F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
INK = "#1a1b1c"  # of lines and letters; a page puts the colour of its text there
FAINT = "#8a8b8c"
DOTS_PER_INCH = 200  # of a PNG

Datum = str | int | float | None


class Drawing(str):
    """The text of an SVG, and the same drawing as a PNG for where an SVG cannot stand."""

    png: bytes

    def __new__(cls, svg: str, png: bytes) -> Drawing:
        """Text that carries its PNG along."""
        own = super().__new__(cls, svg)
        own.png = png
        return own


@dataclass(frozen=True)
class Figure:
    """One figure of a report."""

    name: str  # of its files
    title: str
    caption: str  # what to see in it
    alternative: str  # what it shows, in words
    svg: Drawing
    header: tuple[str, ...]  # of its data
    rows: tuple[tuple[Datum, ...], ...]

    def csv(self) -> str:
        """The data that is drawn."""
        rows = (["" if cell is None else _plain(cell) for cell in row] for row in self.rows)
        return csv_text(self.header, rows)


@dataclass(frozen=True)
class Missing:
    """The placeholder of a figure that cannot be drawn: why, and how to get it."""

    name: str
    title: str
    why: str


def drawing(name: str, draw: Callable[[Any], None], *, width: float = 7.0, height: float = 4.0) -> Drawing:
    """Draw with `draw` on a matplotlib figure of this size in inches."""
    require_installed("matplotlib", "figures need matplotlib", package="matplotlib")
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    settings: dict[Any, Any] = {
        "svg.hashsalt": name,  # so that the same data gives the same bytes, and no two figures share a name
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
    }
    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    with mpl.rc_context(settings | dict.fromkeys(inked, INK)), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are too long, or of letters that the font lacks
        canvas = Canvas(figsize=(width, height), layout="constrained")
        canvas.patch.set_alpha(0.0)
        draw(canvas)
        _without_formulas(canvas)
        for axes in canvas.axes:
            axes.patch.set_alpha(0.0)
        text = io.StringIO()
        FigureCanvasSVG(canvas).print_svg(text, metadata={"Date": None, "Creator": None})
        canvas.patch.set(alpha=1.0, facecolor="white")  # a PNG may come to stand on any ground
        canvas.set_dpi(DOTS_PER_INCH)
        dots = io.BytesIO()
        FigureCanvasAgg(canvas).print_png(dots, metadata={"Software": None})
    return Drawing(text.getvalue()[text.getvalue().index("<svg") :], dots.getvalue())


def legend_below(canvas: Any, axes: Any, columns: int = 4) -> None:
    """The legend of some axes under the whole figure, where no data can lie beneath it."""
    handles, labels = axes.get_legend_handles_labels()
    columns = min(columns, max(1, len(labels)))
    canvas.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=8)


def _without_formulas(canvas: Any) -> None:
    """A name is not a formula, whatever stands in it. The powers of ten beside a logarithmic axis are."""
    from matplotlib.text import Text

    powers: set[int] = set()
    for axes in canvas.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":
                powers |= {id(text) for text in axis.findobj(Text)}
    for text in canvas.findobj(Text):
        if id(text) not in powers:
            text.set_parse_math(False)


def for_a_page(svg: str, title: str) -> str:
    """The SVG to stand in a page: as wide as there is room, in the page's ink, named for screen readers."""
    opening, rest = svg.split(">", 1)
    words = [word for word in opening.split(" ") if not word.startswith(("width=", "height="))]
    named = " ".join(words) + f' role="img" aria-label="{html.escape(title)}" class="drawing"'
    return f"{named}>{rest}".replace(INK, "currentColor")


def _plain(cell: str | int | float) -> str:
    return f"{cell:.6g}" if isinstance(cell, float) else str(cell)
