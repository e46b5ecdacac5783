"""The figures of a report by name, in the order of the page.

Nothing heavy is imported here, so that `metavib report --help` can name them all at once.
"""

from typing import NamedTuple


class FigureKind(NamedTuple):
    """A figure, or a few that belong together."""

    title: str
    drawn_by: str  # module and function under metavib.reports, which gives a list of figures
    from_answers: bool = True  # it takes the answers of models, else the records of runs


FIGURES: dict[str, FigureKind] = {
    "training": FigureKind("Training", "training.training", from_answers=False),
    "uncertainty": FigureKind("Uncertainty", "uncertainty.uncertainty"),
    "confusion": FigureKind("Confusion", "confusion.confusion"),
    "cases": FigureKind("Cases", "cases.cases"),
    "classifiers": FigureKind("Sampled classifiers", "cases.classifiers"),
    "embedding": FigureKind("Embedding", "embedding.embedding"),
    "information-plane": FigureKind(
        "Information plane", "information_plane.information_plane", from_answers=False
    ),
}
