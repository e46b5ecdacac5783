"""The drawings of docs/concepts: what a domain, an episode, a bottleneck and calibration are.

    python experiments/docs_drawings.py

A drawing takes its colours from classes. As a file it follows the reader's system between light and dark; in a
page of the site `docs/_static/site.css` colours it (`docs/website/drawings.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs/concepts/images"

# Okabe and Ito's colours, which people with any colour vision can tell apart.
STYLE = """\
<style>
.d-text { fill: #1b1f24 } .d-soft { fill: #4b5563 } .d-line { stroke: #6b7280; fill: none }
.d-box { fill: #f3f5f8; stroke: #9aa3af } .d-shut { fill: none; stroke: #b4548a; stroke-dasharray: 6 4 }
.d-one { fill: #0072b2 } .d-two { fill: #d98e00 } .d-three { fill: #00855f } .d-target { fill: #b4548a }
@media (prefers-color-scheme: dark) {
.d-text { fill: #e6e9ee } .d-soft { fill: #b3bac5 } .d-line { stroke: #98a2b0 }
.d-box { fill: #242a33; stroke: #5d6877 } .d-shut { stroke: #e39cc4 }
.d-one { fill: #56b4e9 } .d-two { fill: #f0b43c } .d-three { fill: #3cc79b } .d-target { fill: #e39cc4 }
}
</style>"""
DOMAINS = {"photographs": "d-one", "cartoons": "d-two", "sketches": "d-three", "paintings": "d-target"}


def text(x: float, y: float, words: str, kind: str = "d-text", size: int = 15, anchor: str = "middle") -> str:
    """A line of words."""
    place = f'x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {place}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str = "d-box", dashed: bool = False) -> str:
    """A rectangle with round corners."""
    width_of_line = 2 if dashed else 1
    return (
        f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" '
        f'stroke-width="{width_of_line}"/>'
    )


def images(
    x: float, y: float, kind: str, count: int, columns: int = 4, shape: str = "mixed"
) -> Iterable[str]:
    """A handful of images: small marks, round and square ones are the two classes."""
    for number in range(count):
        left, top = x + 20 * (number % columns), y + 20 * (number // columns)
        if shape == "round" or (shape == "mixed" and number % 2):
            yield f'<circle class="{kind}" cx="{left + 7:g}" cy="{top + 7:g}" r="7"/>'
        else:
            yield f'<rect class="{kind}" x="{left:g}" y="{top:g}" width="14" height="14" rx="2"/>'


def arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    """A straight arrow."""
    return (
        f'<line class="d-line" x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}" stroke-width="1.5" '
        'marker-end="url(#d-head)"/>'
    )


def drawing(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """A whole file."""
    head = (
        '<defs><marker id="d-head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
        'orient="auto"><path class="d-soft" d="M0 0L10 5L0 10z"/></marker></defs>'
    )
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui, sans-serif">'
    return "\n".join([opening, f"<title>{escape(title)}</title>", STYLE, head, *parts, "</svg>"]) + "\n"


def domains() -> str:
    """Sources with training and validation images, the target behind a door."""
    parts = [text(235, 24, "sources: the model learns from these", size=16)]
    for number, (name, kind) in enumerate(list(DOMAINS.items())[:3]):
        x = 10 + 155 * number
        parts += [box(x, 40, 140, 190), text(x + 70, 66, name)]
        parts += [*images(x + 32, 82, kind, 16), text(x + 70, 182, "training", "d-soft", 13)]
        parts += [*images(x + 32, 190, kind, 4), text(x + 70, 222, "validation", "d-soft", 13)]
    parts += [text(590, 24, "target: stays closed", size=16), box(515, 40, 150, 198, "d-shut", dashed=True)]
    parts += [text(590, 66, "paintings"), *images(553, 86, "d-target", 20)]
    parts += [text(590, 212, "opened once,", "d-soft", 13), text(590, 229, "at the end", "d-soft", 13)]
    parts += [arrow(80, 236, 80, 268), arrow(235, 236, 235, 268), arrow(390, 236, 390, 268)]
    parts += [box(10, 274, 450, 44), text(235, 302, "train and choose a model")]
    parts += [arrow(462, 296, 511, 296), arrow(590, 242, 590, 268)]
    parts += [box(515, 274, 150, 44), text(590, 302, "measure it")]
    return drawing(675, 330, "Sources and target", parts)


def episodes() -> str:
    """Three steps, each with other parts for the sources."""
    parts = [text(215, 24, "meta-train: teach", size=16), text(455, 24, "meta-test: is tested", size=16)]
    names = list(DOMAINS)[:3]
    for step in range(3):
        y = 40 + 92 * step
        tested = names[(2 + step) % 3]
        teachers = [name for name in names if name != tested]
        parts += [text(10, y + 44, f"step {step + 1}", "d-soft", 14, "start")]
        parts += [box(80, y, 270, 76), box(390, y, 130, 76)]
        for number, name in enumerate(teachers):
            x = 97 + 130 * number
            parts += [text(x + 52, y + 24, name, size=14), *images(x + 15, y + 34, DOMAINS[name], 8)]
        parts += [text(455, y + 24, tested, size=14), *images(418, y + 34, DOMAINS[tested], 8)]
        parts += [arrow(352, y + 38, 386, y + 38)]
    parts += [box(555, 40, 110, 260, "d-shut", dashed=True), text(610, 66, "paintings", size=14)]
    parts += [*images(573, 84, "d-target", 20), text(610, 240, "the target", "d-soft", 13)]
    parts += [text(610, 260, "takes no part", "d-soft", 13)]
    return drawing(675, 315, "Episodes", parts)


def bottleneck() -> str:
    """From an image through a narrow code to the classes."""
    parts = [box(10, 60, 120, 130), text(70, 84, "an image"), *images(63, 98, "d-three", 1, shape="round")]
    parts += [text(70, 138, "its class", "d-soft", 13), text(70, 156, "its light", "d-soft", 13)]
    parts += [text(70, 174, "its paper", "d-soft", 13), arrow(132, 125, 172, 125)]
    parts += [box(178, 80, 100, 90), text(228, 120, "network"), text(228, 142, "features", "d-soft", 13)]
    parts += [arrow(280, 125, 316, 125)]
    parts += [
        '<path class="d-box" stroke-width="1" d="M322 50 L392 104 L458 104 L528 50 L528 200 L458 146 L392 146 '
        'L322 200 Z"/>',
        text(425, 131, "code", size=16),
        text(425, 38, "bottleneck: differing from the prior costs", size=15),
        arrow(530, 125, 566, 125),
        box(572, 80, 92, 90),
        text(618, 120, "classifier"),
        text(618, 142, "90 % dog", "d-soft", 13),
        text(425, 232, "the prior of MetaVIB: the same class in other domains", "d-soft", 14),
        *images(385, 244, "d-one", 2, shape="round"),
        *images(427, 244, "d-two", 2, shape="round"),
        arrow(425, 214, 425, 152),
    ]
    return drawing(675, 270, "The bottleneck", parts)


def calibration() -> str:
    """Stated probability against the share that is right."""
    left, bottom, side = 110.0, 300.0, 260.0

    def place(stated: float, right: float) -> tuple[float, float]:
        return left + side * stated, bottom - side * right

    parts = [f'<rect class="d-box" x="{left:g}" y="{bottom - side:g}" width="{side:g}" height="{side:g}"/>']
    (x, y), (to_x, to_y) = place(0, 0), place(1, 1)
    parts.append(
        f'<line class="d-line" x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}" stroke-width="1.5"/>'
    )
    for share in (0.0, 0.5, 1.0):
        x, y = place(share, share)
        parts += [text(x, bottom + 20, f"{100 * share:.0f} %", "d-soft", 13)]
        parts += [text(left - 8, y + 5, f"{100 * share:.0f} %", "d-soft", 13, "end")]
    calibrated = [(0.3, 0.31), (0.5, 0.48), (0.7, 0.72), (0.9, 0.89)]
    overconfident = [(0.3, 0.22), (0.5, 0.33), (0.7, 0.46), (0.9, 0.62)]
    for stated, right in calibrated:
        x, y = place(stated, right)
        parts.append(f'<circle class="d-one" cx="{x:g}" cy="{y:g}" r="7"/>')
    for stated, right in overconfident:
        x, y = place(stated, right)
        parts.append(f'<rect class="d-two" x="{x - 7:g}" y="{y - 7:g}" width="14" height="14"/>')
    parts += [text(left + side / 2, bottom + 44, "probability that the model states")]
    parts += [text(10, bottom - side - 14, "share that is right", anchor="start")]
    parts += ['<circle class="d-one" cx="412" cy="92" r="7"/>', text(430, 97, "calibrated:", anchor="start")]
    parts += [text(430, 119, "90 % means nine of ten", "d-soft", 14, "start")]
    parts += ['<rect class="d-two" x="405" y="165" width="14" height="14"/>']
    parts += [text(430, 177, "overconfident:", anchor="start")]
    parts += [text(430, 199, "90 % means six of ten", "d-soft", 14, "start")]
    parts += [text(405, 285, "a sketch, not a measurement", "d-soft", 13, "start")]
    return drawing(675, 355, "Calibration", parts)


DRAWINGS = {"domains": domains, "episodes": episodes, "bottleneck": bottleneck, "calibration": calibration}

if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (FOLDER / f"{name}.svg").write_text(draw())
