"""Losses, validation and learning rate through training: all runs in one picture, and each by itself."""

from collections.abc import Sequence
from typing import Any

from metavib.reports.figure import COLOURS, Figure, Missing, drawing, legend_below
from metavib.runs.records import RunRecord

NAME, TITLE = "training", "Training"
RUNS_BY_THEMSELVES = 24  # more would make a page of curves that nobody looks at


def training(runs: Sequence[RunRecord]) -> list[Figure | Missing]:
    """One panel for each quantity, one line for each run; then one panel for each run."""
    logged = [run for run in runs if run.log]
    if not logged:
        return [Missing(NAME, TITLE, "No run has a log (metrics.jsonl): train again to get one.")]
    terms = list(dict.fromkeys(name for run in logged for name in _terms(run)))
    known = [*terms, "validation_accuracy", "validation_loss", "learning_rate"]
    quantities = [name for name in known if any(name in record for run in logged for record in run.log)]
    titles = list(dict.fromkeys(run.title for run in logged))
    colours = {title: COLOURS[number % len(COLOURS)] for number, title in enumerate(titles)}

    def overlaid(canvas: Any) -> None:
        columns = min(len(quantities), 3)
        panels = canvas.subplots(-(-len(quantities) // columns), columns, squeeze=False)
        for axes in panels.flat[len(quantities) :]:
            axes.set_visible(False)
        for axes, quantity in zip(panels.flat, quantities, strict=False):
            named = set()
            for run in logged:
                points = _points(run, quantity)
                label = run.title if run.title not in named else None
                named.add(run.title)
                axes.plot(*points, color=colours[run.title], linewidth=0.9, alpha=0.8, label=label)
            if quantity not in ("validation_accuracy", "learning_rate"):
                axes.set_yscale("log")  # the first steps of a loss would hide all others
            axes.set_title(quantity.replace("_", " "), fontsize=9)
            axes.set_xlabel("step")
        legend_below(canvas, max(panels.flat, key=lambda axes: len(axes.get_legend_handles_labels()[1])))

    rows = [
        (run.title, run.target, run.experiment.seed, step, quantity, value)
        for run in logged
        for quantity in quantities
        for step, value in zip(*_points(run, quantity), strict=True)
    ]
    header = ("run", "unseen", "seed", "step", "quantity", "value")
    height = 2.5 * -(-len(quantities) // min(len(quantities), 3)) + 0.3
    whole = Figure(
        NAME,
        TITLE,
        "Every term of the objective, the source validation and the learning rate, step by step; one "
        "line a run. Look for a validation that still rises at the end (train longer) or falls again "
        "(the rule of selection goes back).",
        f"Line charts of {', '.join(q.replace('_', ' ') for q in quantities)} for {len(logged)} runs.",
        drawing(NAME, overlaid, width=8.0, height=height),
        header,
        tuple(rows),
    )
    shown = logged[:RUNS_BY_THEMSELVES]

    def by_themselves(canvas: Any) -> None:
        most, fullest = max(len(_terms(run)) for run in shown), None
        columns = min(len(shown), 4)
        panels = canvas.subplots(-(-len(shown) // columns), columns, squeeze=False, sharex=True)
        for axes in panels.flat[len(shown) :]:
            axes.set_visible(False)
        for axes, run in zip(panels.flat, shown, strict=False):
            for number, term in enumerate(_terms(run)):
                axes.plot(*_points(run, term), color=COLOURS[number], linewidth=0.9, label=term)
            axes.set_yscale("log")
            validation = axes.twinx()
            validation.plot(
                *_points(run, "validation_accuracy"), color=COLOURS[7], linewidth=1.2, linestyle="--"
            )
            validation.set_ylim(0, 1)
            axes.set_title(f"{run.title}, {run.target}, seed {run.experiment.seed}", fontsize=8)
            if len(_terms(run)) == most:  # one legend is enough, where it names all
                fullest = axes
            axes.tick_params(labelsize=7)
            validation.tick_params(labelsize=7)
        if fullest is not None:
            legend_below(canvas, fullest)

    left_out = f" The first {len(shown)} of {len(logged)} runs." if len(shown) < len(logged) else ""
    each = Figure(
        "training-of-each-run",
        "Training, run by run",
        "The terms of the objective (lines, left axis) and the accuracy on source validation (dashed, "
        f"right axis) of every run.{left_out}",
        f"Small line charts, one for each of {len(shown)} runs.",
        drawing("training-of-each-run", by_themselves, width=8.0, height=1.9 * -(-len(shown) // 4) + 0.7),
        header,
        tuple(row for row in rows if row[:3] in {(r.title, r.target, r.experiment.seed) for r in shown}),
    )
    return [whole, each]


def _terms(run: RunRecord) -> list[str]:
    others = {"step", "split", "learning_rate", "validation_accuracy", "validation_loss"}
    return list(dict.fromkeys(name for record in run.log for name in record if name not in others))


def _points(run: RunRecord, quantity: str) -> tuple[list[int], list[float]]:
    records = [record for record in run.log if record.get(quantity) is not None]
    return [record["step"] for record in records], [record[quantity] for record in records]
