"""`metavib data`: what is in a dataset, and what is wrong with it."""

from __future__ import annotations

import argparse
from pathlib import Path

from metavib.data.catalog import open_dataset
from metavib.data.inspection import Report, inspect
from metavib.data.pixel_range import number
from metavib.data.splits import natural_order
from metavib.foreign_text import visible
from metavib.terminal import counting_bar, print_json, print_result, table


def run(arguments: argparse.Namespace) -> int:
    """Print the report; status 2 where training could not start."""
    root = Path(arguments.data) if arguments.data else None
    dataset = open_dataset(arguments.dataset, data_root=root, protocol=arguments.protocol, seed=0)
    with counting_bar("opening images") as reading:
        report = inspect(dataset, progress=reading)
    print_result(f"{dataset.name} ({dataset.protocol})")
    print_result(counts_table(report))
    if report.sizes is not None:
        (low_w, mid_w, high_w), (low_h, mid_h, high_h) = report.sizes.width, report.sizes.height
        print_result(
            f"pixels: smallest {low_w} x {low_h}, median {mid_w} x {mid_h}, largest {high_w} x {high_h}"
        )
    print_result("modes: " + ", ".join(f"{count} {mode}" for mode, count in report.modes.items()))
    if report.pixel_range is not None and report.extremes is not None:
        low, high = map(number, report.extremes)
        print_result(
            f"values: {low} to {high}. Training takes them for {report.pixel_range.in_words}, which become "
            "0 to 255; a run looks at its source domains only"
        )
    for problem in report.problems:
        print_result(f"{problem.severity}: {visible(problem.text)}")
    print_result(verdict(report))
    if arguments.json:
        print_json(report.to_json())
    return 0 if report.can_train else 2


def verdict(report: Report) -> str:
    """Whether training can start, and if not, what to do about it."""
    errors = [problem for problem in report.problems if problem.severity == "error"]
    skippable = sum(problem.can_be_skipped for problem in errors)
    if not errors:
        return "training can start."
    if skippable == len(errors):
        return "training cannot start: fix or remove these files, or leave them out with --skip-bad."
    files = " Files that cannot be read can be left out with --skip-bad." if skippable else ""
    return f"training cannot start: fix the errors above.{files}"


def counts_table(report: Report) -> str:
    """Domains x classes, with sums."""
    classes = sorted({name for counts in report.counts.values() for name in counts}, key=natural_order)
    rows = []
    for name in classes:
        found = [counts.get(name, 0) for counts in report.counts.values()]
        rows.append([name, *map(str, found), str(sum(found))])
    sums = [sum(counts.values()) for counts in report.counts.values()]
    rows.append(["all", *map(str, sums), str(sum(sums))])
    return table(["class", *report.counts, "all"], rows)
