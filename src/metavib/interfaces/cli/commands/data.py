"""`metavib data`: what is in a dataset, and what is wrong with it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from metavib.core.errors import UserError
from metavib.core.foreign_text import visible
from metavib.core.terminal import counting_bar, print_json, print_result, say, table
from metavib.interfaces.cli.flags import add_shared, data_root

if TYPE_CHECKING:
    from metavib.data.dataset import Dataset
    from metavib.data.inspection import Report
    from metavib.training.at_hand import AtHand

HELP = "look at a dataset: domains, classes, sizes, and everything that is wrong with it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "--json", "dataset", "--data", "--protocol")
    parser.add_argument("--page", metavar="FILE.html", help="write a page with thumbnails of what was found")
    labels = parser.add_mutually_exclusive_group()
    labels.add_argument(
        "--no-label-check", action="store_true", help="do not look for labels that may be wrong"
    )
    labels.add_argument(
        "--labels-by-network",
        action="store_true",
        help="judge labels by the features of the best network whose weights are here: what photographs need",
    )
    add_shared(parser, "--device", "--threads")


def run(arguments: argparse.Namespace) -> int:
    """Print the report; where training could not start, that is an error."""
    from metavib.data.decoding.pixel_range import number
    from metavib.data.inspection import inspect
    from metavib.data.sources.catalog import open_dataset
    from metavib.data.suspicious_labels import in_words

    dataset = open_dataset(
        arguments.dataset, data_root=data_root(arguments), protocol=arguments.protocol, seed=0
    )
    by_network = _network(arguments, dataset) if arguments.labels_by_network else None
    simple = not (arguments.no_label_check or arguments.labels_by_network)
    with counting_bar("opening images") as reading:
        report = inspect(dataset, progress=reading, judge_labels=simple)
    if by_network is not None and report.modes:
        report = _judged_by_network(arguments, dataset, report, by_network)
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
        more = simple and report.labels.judged < report.labels.classes
        print_result(in_words(report.labels) + (". --labels-by-network tells more" if more else ""))
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


def _network(arguments: argparse.Namespace, dataset: Dataset) -> AtHand:
    """The network whose features judge labels; an error where none is here, before any image is opened."""
    from metavib.core.device import resolve_device
    from metavib.data.file_dataset import FileDataset
    from metavib.training.at_hand import network_at_hand

    if not isinstance(dataset, FileDataset):
        raise UserError("--labels-by-network is for folders of images: this dataset has no files.")
    found = network_at_hand(data_root(arguments), resolve_device(arguments.device))
    if found is None:
        raise UserError(
            "--labels-by-network needs the weights of a network, and none are here. Put a file such as "
            "weights/squeezenet1_0-imagenet.safetensors into the data folder (--data, METAVIB_DATA)."
        )
    return found


def _judged_by_network(
    arguments: argparse.Namespace, dataset: Dataset, report: Report, network: AtHand
) -> Report:
    from metavib.core.cores import check, used_by_torch, usual
    from metavib.core.device import resolve_device
    from metavib.training.label_features import labels_by_network

    check(arguments.threads)
    say(f"metavib: labels are judged by {network.name}, {network.weights}.")
    with counting_bar("computing features") as computing, used_by_torch(arguments.threads or usual()):
        found = labels_by_network(
            dataset,
            network,
            resolve_device(arguments.device),
            pixel_range=report.pixel_range,
            progress=computing,
        )
    return report.with_labels(found)


def why_not(report: Report) -> str:
    """The remedy where training cannot start."""
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
