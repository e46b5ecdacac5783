"""Tables of the rounds of `experiments/recipe_rounds.py`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from record_tables.records import markdown, record


def of_round(name: str, number: int) -> str:
    """Accuracy and calibration of each variant of a round on the domains left out, beside the first one."""
    rounds: list[dict[str, Any]] = list(record(name)["rounds"].values())
    rows = []
    for variant, found in rounds[number]["compared"].items():
        ahead, p = found.get("ahead"), found.get("p")
        rows.append(
            [
                variant,
                f"{100 * found['accuracy']:.1f}",
                f"{100 * found['ece']:.1f}",
                "" if ahead is None else f"{100 * ahead:+.1f}",
                "" if p is None else "< .001" if p < 0.001 else f"{p:.3f}".lstrip("0"),
                str(found["cells"]),
            ]
        )
    return markdown(["", "accuracy, %", "ECE, %", "beside the first", "p", "runs"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "choosing best": functools.partial(of_round, "best-choosing", 0),
    "readings of the paper": functools.partial(of_round, "best-digits", 0),
    "best on digits": functools.partial(of_round, "best-digits", 1),
    "PACS with Lite0": functools.partial(of_round, "pacs-networks", 0),
}
