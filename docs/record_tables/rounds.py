"""Tables of the rounds of `experiments/recipe_rounds.py`."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
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
                _chance(p),
                str(found["cells"]),
            ]
        )
    return markdown(["", "accuracy, %", "ECE, %", "beside the first", "p", "runs"], rows)


def of_targets(name: str, number: int) -> str:
    """Accuracy of each variant of a round target by target, as mean over its runs; and over all targets, where it
    has them all: accuracy, calibration error, AUGRC, and how far it is beside the first variant in common runs."""
    found = record(name)
    title, of_round = list(found["rounds"].items())[number]
    cells = [cell for cell in found["cells"] if cell["round"] == title]
    targets = [task["target"] for task in of_round["plan"]["tasks"]]
    rows = []
    for variant, beside in of_round["compared"].items():
        own = [cell for cell in cells if cell["variant"] == variant]
        of_each = {target: [cell for cell in own if cell["target"] == target] for target in targets}
        whole = all(of_each.values())
        rows.append(
            [
                variant,
                *(_percent(of_each[target], "accuracy") for target in targets),
                *(_percent(own, measure) if whole else "" for measure in ("accuracy", "ece", "augrc")),
                f"{100 * beside['ahead']:+.1f}" if "ahead" in beside else "",
                _chance(beside.get("p")),
                str(len(own)),
            ]
        )
    titles = [target.replace("_", " ") for target in targets]
    return markdown(["", *titles, "mean", "ECE, %", "AUGRC, %", "beside the first", "p", "runs"], rows)


def _percent(cells: Sequence[Mapping[str, Any]], measure: str) -> str:
    """The mean of a measure over these runs."""
    return f"{100 * statistics.mean(cell[measure] for cell in cells):.1f}" if cells else ""


def _chance(p: float | None) -> str:
    return "" if p is None else "< .001" if p < 0.001 else f"{p:.3f}".lstrip("0")


TABLES: dict[str, Callable[[], str]] = {
    "choosing best": functools.partial(of_round, "best-choosing", 0),
    "readings of the paper": functools.partial(of_round, "best-digits", 0),
    "best on digits": functools.partial(of_round, "best-digits", 1),
    "PACS with Lite0": functools.partial(of_targets, "pacs-networks", 0),
    "choosing best on photographs": functools.partial(of_targets, "photographs-choosing", 0),
    "digits_four": functools.partial(of_targets, "digits-four", 0),
    "choosing on digits_four": functools.partial(of_targets, "digits-four-choosing", 0),
    "against collapse": functools.partial(of_targets, "digits-four-choosing", 1),
}
