"""Which classes of the unseen domain are taken for which."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from metavib.reports.figure import INK, Figure, Missing, drawing
from metavib.reports.judged import Judged

NUMBERED = 12  # classes up to which the shares are written into the cells
DRAWN = 100  # classes at most: a page cannot show, nor a table hold, the square of thousands


def confusion(judged: Sequence[Judged]) -> list[Figure | Missing]:
    """One matrix for each method, of all its runs; on the diagonal the accuracy of each class."""
    every = tuple(judged[0].run.results.classes)
    titles = list(dict.fromkeys(one.run.title for one in judged))
    shown = _most_mistaken(judged, len(every))
    classes, count = tuple(every[number] for number in shown), len(shown)
    drawn_at = torch.full((len(every),), -1)
    drawn_at[shown] = torch.arange(count)
    tables, images = {}, {}
    for title in titles:
        table, of_class = torch.zeros(count, count, dtype=torch.int64), torch.zeros(count, dtype=torch.int64)
        for one in judged:
            if one.run.title == title:
                truths, answers = drawn_at[one.unseen.labels], drawn_at[one.unseen.predicted]
                of_class += torch.bincount(truths[truths >= 0], minlength=count)
                both = (truths >= 0) & (answers >= 0)
                pairs = truths[both] * count + answers[both]
                table += torch.bincount(pairs, minlength=count * count).view(count, count)
        tables[title], images[title] = table, of_class

    columns = min(len(titles), 2)
    lines = -(-len(titles) // columns)

    def draw(canvas: Any) -> None:
        panels = canvas.subplots(lines, columns, squeeze=False).flat
        for axes in panels[len(titles) :]:
            axes.set_visible(False)
        for axes, title in zip(panels, titles, strict=False):
            shares = tables[title].double() / images[title].unsqueeze(-1).clamp_min(1)
            axes.imshow(shares.numpy(), cmap="cividis", vmin=0, vmax=1)
            axes.set_xticks(range(count), classes, rotation=90, fontsize=7)
            axes.set_yticks(range(count), classes, fontsize=7)
            axes.set_xlabel("answer")
            axes.set_title(title, fontsize=9)
            for row in range(count if count <= NUMBERED else 0):
                for column in range(count):
                    share = shares[row, column].item()
                    if share >= 0.005:
                        colour = "#000000" if share > 0.5 else "#ffffff"
                        text = f"{100 * share:.0f}"
                        axes.text(column, row, text, ha="center", va="center", fontsize=6, color=colour)
        panels[0].set_ylabel("truth", color=INK)

    rows = tuple(
        (title, classes[row], classes[column], int(tables[title][row, column]))
        for title in titles
        for row in range(count)
        for column in range(count)
    )
    worst = []
    for title, table in tables.items():
        off = table - torch.diag(table.diagonal())
        if off.any():
            place = int(off.argmax())
            worst.append(f"{title}: {classes[place // count]} taken for {classes[place % count]}")
    side = max(2.4, 0.24 * count + 1.0)
    return [
        Figure(
            "confusion",
            "Confusion",
            "Rows are true classes of the unseen domain, columns are answers, in % of the row; the "
            "diagonal is the accuracy of "
            "each class."
            + (f" Of {len(every):,} classes, the {count} with the most errors." if count < len(every) else "")
            + (f" The most frequent error of {'; of '.join(worst)}." if worst else ""),
            "Confusion matrices of " + ", ".join(titles) + ".",
            drawing("confusion", draw, width=side * columns, height=(side + 0.4) * lines),
            ("method", "truth", "answer", "images"),
            rows,
        )
    ]


def _most_mistaken(judged: Sequence[Judged], classes: int) -> Tensor:
    """The numbers of the classes that are drawn, in order: all, or those with the most errors of all methods."""
    if classes <= DRAWN:
        return torch.arange(classes)
    errors = torch.zeros(classes, dtype=torch.int64)
    for one in judged:
        errors += torch.bincount(one.unseen.labels[~one.unseen.right], minlength=classes)
    return errors.argsort(descending=True, stable=True)[:DRAWN].sort().values
