"""What a sweep found: algorithms in order, each with its chosen settings, means and standard errors."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metavib.core.terminal import table
from metavib.models.measures import MEASURES
from metavib.runs.cross_validation import accuracy_of
from metavib.runs.grid import Done
from metavib.runs.sweep.plan import Plan
from metavib.runs.sweep.tuning import Measured


def ranking_of(plan: Plan, measured: Sequence[Measured], out: Path) -> dict[str, Any]:
    """Everything, in plain values: the same sweep gives the same bytes, whatever was killed meanwhile."""
    rows = [
        _row(plan, name, [one for one in measured if one.contest.algorithm == name], out)
        for name in plan.algorithms
    ]
    rows.sort(key=lambda row: -math.inf if row["mean"] is None else row["mean"], reverse=True)
    first = next((run.results for one in measured for run in one.runs if run.results), None)
    return {
        "dataset": plan.values["dataset"],
        "protocol": first.protocol if first else None,
        "targets": list(plan.targets),
        "seeds": list(plan.seeds),
        "search": plan.search,
        "choose_for": plan.choose_for,
        "select": {"rule": plan.rule.name, "domainbed": plan.rule.title, "peeks": plan.rule.peeks},
        "ranking": rows,
    }


def _row(plan: Plan, algorithm: str, measured: Sequence[Measured], out: Path) -> dict[str, Any]:
    by_target: dict[str, Any] = {}
    values: dict[tuple[str, int], float] = {}
    for target in plan.targets:
        own = [one for one in measured if one.contest.target == target]
        runs = [run for one in own for run in one.runs if run.results is not None]
        for run in runs:
            assert run.results is not None
            values[target, run.cell.experiment.seed] = 100 * accuracy_of(run.results.unseen)
        mean, error = mean_and_error([values[key] for key in values if key[0] == target])
        by_target[target] = {
            "mean": mean,
            "standard_error": error,
            "chosen": [_chosen(one) for one in own],
            "runs": [_run(run, out) for run in runs],
            "failures": [why for one in own for why in one.failures],
        }
    whole = [seed for seed in plan.seeds if all((target, seed) in values for target in plan.targets)]
    mean, error = mean_and_error(
        [statistics.fmean(values[target, seed] for target in plan.targets) for seed in whole]
    )
    return {"algorithm": algorithm, "mean": mean, "standard_error": error, "targets": by_target}


def _chosen(one: Measured) -> dict[str, Any]:
    """Which setting, and how it and the others were judged."""
    contest, chosen = one.contest, one.contest.chosen
    trials = [
        {"settings": trial.setting, "score": trial.score, "failure": trial.failure}
        for trial in contest.distinct
    ]
    return {
        "seeds": list(contest.seeds),
        "settings": None if chosen is None else chosen.setting,
        "score": None if chosen is None else chosen.score,
        "trials": trials,
    }


def _run(run: Done, out: Path) -> dict[str, Any]:
    assert run.results is not None
    assert run.results.unseen is not None
    unseen = {name: mean for name in MEASURES if (mean := run.results.unseen.mean(name)) is not None}
    place = run.cell.out.relative_to(out).as_posix()
    return {"seed": run.cell.experiment.seed, "run": place, "unseen": unseen}


def mean_and_error(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The mean and its standard error; None where there are too few values."""
    if not values:
        return None, None
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return statistics.fmean(values), error


def as_table(record: dict[str, Any]) -> str:
    """The ranking for a terminal, with the settings below it."""
    header, rows = body(record)
    return "\n".join([table(header, rows), "", *chosen_in_words(record)])


def as_markdown(record: dict[str, Any]) -> str:
    """The ranking for a page."""
    header, rows = body(record)
    lines = ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows)]
    return (
        "\n".join([caption(record), "", *lines, "", *(f"- {line}" for line in chosen_in_words(record))])
        + "\n"
    )


def caption(record: dict[str, Any]) -> str:
    """What the numbers are."""
    seeds = len(record["seeds"])
    rule = record["select"]
    peeking = ", which PEEKS at the unseen domain: no fair comparison" if rule["peeks"] else ""
    return (
        f"{record['dataset']}: accuracy on the unseen domain in %, mean and standard error over {seeds} "
        f"seed{'s' if seeds > 1 else ''}; settings by {rule['rule']} (DomainBed's {rule['domainbed']}{peeking}); "
        f"{record['search']} search; protocol: {record['protocol']}."
    )


def body(record: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The head and the rows."""
    rows = []
    for place, row in enumerate(record["ranking"], start=1):
        cells = [_cell(row["targets"][target]) for target in record["targets"]]
        rows.append([f"{place}. {row['algorithm']}", *cells, _cell(row)])
    return ["", *record["targets"], "mean"], rows


def _cell(numbers: dict[str, Any]) -> str:
    if numbers["mean"] is None:
        return "-"
    error = numbers["standard_error"]
    return f"{numbers['mean']:.2f}" + ("" if error is None else f" +- {error:.2f}")


def chosen_in_words(record: dict[str, Any]) -> list[str]:
    """A line for each choice."""
    lines = []
    for row in record["ranking"]:
        for target, own in row["targets"].items():
            for choice in own["chosen"]:
                who = f"{row['algorithm']}, {target!r} unseen"
                if record["choose_for"] == "seed":
                    who += f", seed {choice['seeds'][0]}"
                lines.append(f"{who}: {_choice_in_words(choice, record['select']['rule'])}")
    return lines


def _choice_in_words(choice: dict[str, Any], rule: str) -> str:
    if choice["settings"] is None:
        return "no setting could be trained"
    settings = " ".join(f"{name}={value}" for name, value in choice["settings"].items()) or "as it is"
    if choice["score"] is None:
        return f"{settings} (nothing to choose)"
    failed = sum(trial["score"] is None for trial in choice["trials"])
    lost = f", {failed} of them broke down" if failed else ""
    return f"{settings} ({100 * choice['score']:.2f} % by {rule}, best of {len(choice['trials'])}{lost})"
