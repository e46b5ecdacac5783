"""Faults of a study whose files are all sound: classes that go with domains, classes too small to measure."""

from __future__ import annotations

import math
from collections.abc import Mapping

CONFOUNDED = 0.5  # of Cramer's V, from 0 (a domain says nothing of the class) to 1 (it says all)
FEW_OF_A_CLASS = 10  # images: one more that is right is ten points of its accuracy
NAMED = 3

Counts = Mapping[str, Mapping[str, int]]  # images by domain and class


def cramers_v(counts: Counts) -> float:
    """How much a domain tells of the class (Cramer, 1946): the root of chi squared over its largest value."""
    classes = sorted({label for found in counts.values() for label in found})
    by_domain = {domain: sum(found.values()) for domain, found in counts.items() if found}
    by_class = {label: sum(found.get(label, 0) for found in counts.values()) for label in classes}
    total, least = sum(by_domain.values()), min(len(by_domain), len(classes))
    if least < 2:
        return 0.0
    chi_squared = sum(
        (counts[domain].get(label, 0) - expected) ** 2 / expected
        for domain in by_domain
        for label in classes
        if (expected := by_domain[domain] * by_class[label] / total) > 0
    )
    return math.sqrt(chi_squared / (total * (least - 1)))


def remarks_on_counts(counts: Counts) -> list[str]:
    """Remarks on the numbers of images that spoil a study."""
    remarks = []
    value = cramers_v(counts)
    if value >= CONFOUNDED:
        remarks.append(
            f"class and domain are confounded (Cramer's V = {value:.2f}, of 0 to 1): a network can tell classes "
            "by their domains; collect the classes that domains lack"
        )
    small = sorted(
        (number, domain, label)
        for domain, found in counts.items()
        for label, number in found.items()
        if number < FEW_OF_A_CLASS
    )
    if small:
        named = ", ".join(f"{label!r} in {domain} has {number}" for number, domain, label in small[:NAMED])
        more = f", and {len(small) - NAMED} more" if len(small) > NAMED else ""
        remarks.append(
            f"classes of fewer than {FEW_OF_A_CLASS} images in a domain are too small to measure there: "
            f"{named}{more}"
        )
    return remarks
