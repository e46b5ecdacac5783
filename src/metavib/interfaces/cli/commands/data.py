"""`metavib data`: what is in a dataset, and what is wrong with it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from metavib.core.errors import UserError
from metavib.core.foreign_text import visible
from metavib.core.terminal import counting_bar, print_json, print_result, table
from metavib.interfaces.cli.flags import add_shared, data_root

if TYPE_CHECKING:
    from metavib.data.inspection import Report

HELP = "look at a dataset: domains, classes, sizes, and everything that is wrong with it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "--json", "dataset", "--data", "--protocol")
    parser.add_argument("--page", metavar="FILE.html", help="write a page with thumbnails of what was found")
    parser.add_argument(
        "--no-label-check", action="store_true", help="do not look for labels that may be wrong"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the report; where training could not start, that is an error."""
    from metavib.data.decoding.pixel_range import number
    from metavib.data.inspection import inspect
    from metavib.data.sources.catalog import open_dataset
    from metavib.data.suspicious_labels import in_words

    dataset = open_dataset(
        arguments.dataset, data_root=data_root(arguments), protocol=arguments.protocol, seed=0
    )
    with counting_bar("opening images") as reading:
        report = inspect(dataset, progress=reading, judge_labels=not arguments.no_label_check)
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
    if report.labels is not None:
        print_result(in_words(report.labels))
    for problem in report.problems:
        print_result(f"{problem.severity}: {visible(problem.text)}")
    if arguments.page:
        from pathlib import Path

        from metavib.core import atomic
        from metavib.reports.data_page import data_page

        atomic.write_text(Path(arguments.page), data_page(dataset, report))
        print_result(f"page written to {arguments.page}")
    if report.can_train:
        print_result("training can start.")
    if arguments.json:
        print_json(report.to_json())
    if not report.can_train:
        raise UserError(why_not(report))
    return 0


def why_not(report: Report) -> str:
    """What to do where training cannot start."""
    errors = [problem for problem in report.problems if problem.severity == "error"]
    skippable = sum(problem.can_be_skipped for problem in errors)
    if skippable == len(errors):
        return "training cannot start: fix or remove these files, or leave them out with --skip-bad."
    files = " Files that cannot be read can be left out with --skip-bad." if skippable else ""
    return f"training cannot start: fix the errors above.{files}"


def counts_table(report: Report) -> str:
    """Domains x classes, with sums."""
    from metavib.data.splits import natural_order

    classes = sorted({name for counts in report.counts.values() for name in counts}, key=natural_order)
    rows = []
    for name in classes:
        found = [counts.get(name, 0) for counts in report.counts.values()]
        rows.append([name, *map(str, found), str(sum(found))])
    sums = [sum(counts.values()) for counts in report.counts.values()]
    rows.append(["all", *map(str, sums), str(sum(sums))])
    return table(["class", *report.counts, "all"], rows)
