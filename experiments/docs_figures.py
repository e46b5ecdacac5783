"""The figures in docs/: small copies of those that `metavib report` made, and a record of the numbers in them.

    python experiments/docs_figures.py REPORT.html NAME --command "metavib train ..."

takes REPORT-figures/ beside the page, writes docs/figures/images/NAME-FIGURE.png and results/figures-NAME.json.
"""

from __future__ import annotations

import argparse
import csv
import html
import json
import re
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).parents[1]
WIDEST = 1100  # pixels
SHADES = 200  # colours of a small file
TABLES = ("uncertainty", "entropy")  # figures whose data is a handful of numbers
PLANE = "information-plane"  # of which the first and the last step are kept


def small_copy(figure: Path, to: Path) -> None:
    """A picture that a page of documentation can hold."""
    picture = Image.open(figure).convert("RGB")
    picture.thumbnail((WIDEST, WIDEST), Image.Resampling.LANCZOS)
    picture.quantize(SHADES, dither=Image.Dither.NONE).save(to, optimize=True)


def caption_of(figure: str, page: str) -> str:
    """The caption that a figure has in a report of one dataset."""
    found = re.search(
        rf'<figure id="[^"]*-{figure}">.*?<figcaption>(.*?)</figcaption>', page, flags=re.DOTALL
    )
    assert found is not None, figure
    return " ".join(html.unescape(found.group(1)).split())


def ends(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Of each beta and layer the first and the last step, and where it knew most of the image."""
    found = []
    for beta, layer in dict.fromkeys((row["beta"], row["layer"]) for row in rows):
        own = [row for row in rows if (row["beta"], row["layer"]) == (beta, layer)]
        most = max(own, key=lambda row: float(row["pairwise_input"]))
        kept = (
            "beta",
            "layer",
            "step",
            "pairwise_input",
            "pairwise_label",
            "pairwise_shuffled",
            "label_entropy",
        )
        found += [
            {"at": at} | {name: row[name] for name in kept}
            for at, row in (("first", own[0]), ("most", most), ("last", own[-1]))
        ]
    return found


def main() -> None:
    """Copy, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("name")
    parser.add_argument("--command", required=True, help="what made the runs")
    parser.add_argument("--only", help="one figure of the report")
    arguments = parser.parse_args()
    figures = sorted(arguments.report.with_name(f"{arguments.report.stem}-figures").rglob("*.png"))
    figures = [figure for figure in figures if arguments.only in (None, figure.stem)]
    images = ROOT / "docs" / "figures" / "images"
    images.mkdir(exist_ok=True)
    record: dict[str, Any] = {
        "command": arguments.command,
        "captions": {
            figure.stem: caption_of(figure.stem, arguments.report.read_text()) for figure in figures
        },
        "numbers": {},
    }
    for figure in figures:
        small_copy(figure, images / f"{arguments.name}-{figure.stem}.png")
        if figure.stem in TABLES:
            with figure.with_suffix(".csv").open(newline="") as file:
                record["numbers"][figure.stem] = list(csv.DictReader(file))
        if figure.stem == PLANE:
            with figure.with_suffix(".csv").open(newline="") as file:
                record["numbers"][PLANE] = ends(list(csv.DictReader(file)))
    target = ROOT / "results" / f"figures-{arguments.name}.json"
    target.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{len(figures)} figures, {target.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
