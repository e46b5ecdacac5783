"""Accuracy class by class and domain by domain, worst first, from the records that `evaluate.measure` makes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

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


def rows_of_run(results: Mapping[str, Any]) -> list[ClassRow]:
    """Every class in the unseen domain, then every class in each source domain; each of the two worst first."""
    classes, rows = results.get("classes") or [], []
    if results.get("unseen") is not None:
        rows += rows_of(classes, results["unseen"], str(results.get("unseen_domain")), unseen=True)
    validation = results.get("source_validation")
    if validation is not None:
        by_domain = validation.get("domains") or {"all sources": validation}
        own = [row for name, one in by_domain.items() for row in rows_of(classes, one, name, unseen=False)]
        rows += worst_first(own)
    return rows


def rows_of(
    classes: Sequence[str], measured: Mapping[str, Any], domain: str, *, unseen: bool
) -> list[ClassRow]:
    """The classes that the domain has, worst first."""
    accuracies = measured.get("per_class_accuracy") or []
    images = measured.get("per_class_images") or [None] * len(accuracies)
    return worst_first(
        ClassRow(label, domain, unseen, accuracy, count)
        for label, accuracy, count in zip(classes, accuracies, images, strict=False)
        if isinstance(accuracy, int | float)  # None where the domain has no image of the class
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
