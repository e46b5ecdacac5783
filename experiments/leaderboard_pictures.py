"""The pictures of docs/results/leaderboard.md: which method is ahead of which beyond chance, a data set each.

PYTHONPATH=docs python experiments/leaderboard_pictures.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.patches import Patch
from record_tables.wins import Comparison, compared

FOLDER = Path(__file__).parents[1] / "docs" / "results" / "images"
RECORDS = {
    "rotated-mnist": ("rotated-mnist-equal", "Rotated MNIST"),
    "pacs": ("pacs-equal", "PACS with SqueezeNet"),
}
AHEAD, BEHIND, LEVEL = "#0072b2", "#d55e00", "#eceff3"  # Okabe and Ito's blue and orange


def draw(own: Comparison, title: str, path: Path) -> None:
    """A square a pair: the row's method is ahead of the column's, behind it, or neither beyond chance."""
    count = len(own.methods)
    figure, axes = pyplot.subplots(figsize=(9.5, 7.6), layout="constrained")
    for row, one in enumerate(own.methods):
        for column, other in enumerate(own.methods):
            if one == other:
                continue
            ahead, behind = (one, other) in own.beyond_chance, (other, one) in own.beyond_chance
            colour = AHEAD if ahead else BEHIND if behind else LEVEL
            axes.add_patch(pyplot.Rectangle((column - 0.47, row - 0.47), 0.94, 0.94, color=colour, lw=0))
            axes.text(
                column,
                row,
                f"{own.differences[one, other]:+.1f}",
                ha="center",
                va="center",
                fontsize=6.5,
                color="white" if ahead or behind else "#4b5563",
            )
    axes.set(xlim=(-0.5, count - 0.5), ylim=(count - 0.5, -0.5), title=title)
    axes.set_xticks(range(count), own.methods, rotation=50, ha="right", fontsize=8)
    labels = [f"{method}  {own.means[method]:.2f} %" for method in own.methods]
    axes.set_yticks(range(count), labels, fontsize=8)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    keys = [
        Patch(color=AHEAD, label="the row is ahead of the column"),
        Patch(color=BEHIND, label="the row is behind"),
        Patch(color=LEVEL, label="not told apart from chance"),
    ]
    figure.legend(handles=keys, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, (record, title) in RECORDS.items():
        draw(
            compared(record),
            f"{title}: difference in class-averaged accuracy, points",
            FOLDER / f"wins-{name}.png",
        )


if __name__ == "__main__":
    main()
