"""The table of how steady answers are."""

from __future__ import annotations

from collections.abc import Callable

from record_tables.records import markdown, record


def steady_answers() -> str:
    """Each way of predicting on each model: how good, and how many labels another seed changes."""
    models = record("steady-answers")["models"]
    rows = []
    for name, found in models.items():
        for way, own in found["ways"].items():
            numbers = [f"{100 * own[key]:.1f}" for key in ("accuracy", "accuracy_of_the_surer_half", "ece")]
            flips = [f"{100 * own[key]:.1f}" for key in ("flips", "most_flips")]
            rows.append([name, way, *numbers, f"{own['nll']:.2f}", *flips, f"{own['ms_an_image']:.2f}"])
            name = ""  # noqa: PLW2901  # it stands in the first of its lines
    header = ["model", "answers from", "accuracy, %", "of the surer half, %", "ECE, %", "NLL"]
    return markdown([*header, "labels that a seed changes, %", "at most, %", "ms an image"], rows)


TABLES: dict[str, Callable[[], str]] = {"steady answers": steady_answers}
