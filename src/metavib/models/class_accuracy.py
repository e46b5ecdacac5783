"""Accuracy class by class and domain by domain, worst first, from the records that `measuring.measure` makes."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from metavib.models.results import ClassAccuracies, Results

NAMED = 5  # classes that a warning names; more are counted


class ClassRow(NamedTuple):
    """One class in one domain."""

    label: str
    domain: str
    unseen: bool  # else these are validation images of a source domain
    accuracy: float
    images: int | None  # older records do not say

    @property
    def number(self) -> str:
        """The number of images, for people."""
        return "?" if self.images is None else f"{self.images:,}"

    @property
    def place(self) -> str:
        """The domain with the number of images, for people."""
        return f"in {self.domain!r} ({self.number} image{'' if self.images == 1 else 's'})"


def rows_of_run(results: Results) -> list[ClassRow]:
    """Every class in the unseen domain, then every class in each source domain; each of the two worst first."""
    classes, rows = results.classes, []
    if results.unseen is not None:
        rows += class_rows(classes, results.unseen.by_class, str(results.unseen_domain), unseen=True)
    validation = results.source_validation
    if validation is not None:
        by_domain = validation.domains or {"all sources": validation.by_class}
        own = [row for name, one in by_domain.items() for row in class_rows(classes, one, name, unseen=False)]
        rows += worst_first(own)
    return rows


def class_rows(
    classes: Sequence[str], measured: ClassAccuracies, domain: str, *, unseen: bool
) -> list[ClassRow]:
    """The classes that the domain has, worst first."""
    accuracies = measured.per_class_accuracy
    images = measured.per_class_images or [None] * len(accuracies)
    return worst_first(
        ClassRow(label, domain, unseen, accuracy, count)
        for label, accuracy, count in zip(classes, accuracies, images, strict=False)
        if accuracy is not None  # the domain has images of the class
    )


def worst_first(rows: Iterable[ClassRow]) -> list[ClassRow]:
    """By accuracy; of equal ones those with more images first, because they are the surer news."""
    return sorted(rows, key=lambda row: (row.accuracy, -(row.images or 0), row.domain, row.label))


def never_right(rows: Sequence[ClassRow]) -> str | None:
    """A warning that names the classes of which no image was answered rightly; None where there is none."""
    at_zero = [row for row in worst_first(rows) if row.accuracy == 0]
    if not at_zero:
        return None
    named = [f"{row.label!r} {row.place}" for row in at_zero[:NAMED]]
    more = f", and {len(at_zero) - NAMED} more" if len(at_zero) > NAMED else ""
    return f"0 % is right of {', '.join(named)}{more}"
