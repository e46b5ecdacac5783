"""`metavib reproduce`: a table of the paper, measured, with the paper's numbers beside ours."""

import argparse

from metavib.interfaces.cli.flags import add_shared, check_checkpoint_seconds

HELP = "measure a table of the paper, with its numbers beside ours; goes on where it was"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "--json")
    parser.add_argument(
        "name",
        metavar="TABLE",
        help="rotated-mnist, pacs, vlcs, ablation-pacs, ablation-vlcs, beta-pacs, beta-vlcs, "
        "beta-rotated-mnist or samples-pacs",
    )
    parser.add_argument("--algorithms", nargs="+", metavar="NAME", help="the rows to measure (all we have)")
    parser.add_argument("--targets", nargs="+", metavar="DOMAIN", help="the columns to measure (all)")
    parser.add_argument("--seeds", default="3", help="how many, or a list as 3,5,8 (%(default)s)")
    parser.add_argument(
        "--preset", default="fast", help="paper, fast, augmented, equal or best (%(default)s)"
    )
    add_shared(parser, "--steps")
    parser.add_argument("--backbone", help="the network, instead of the preset's")
    add_shared(parser, "--weights", "--image-size", "--select", "--average", "--set", "--record-information")
    parser.add_argument("--out", help="where runs and tables go (runs/reproduce/TABLE)")
    parser.add_argument("--plan", action="store_true", help="only say how long it would take")
    add_shared(
        parser,
        "--no-batch",
        "--yes",
        "--checkpoint-seconds",
        "--data",
        "--protocol",
        "--memory",
        "--device",
        "--threads",
    )


def run(arguments: argparse.Namespace) -> int:
    """Train what is missing of the table, then print and write it."""
    check_checkpoint_seconds(arguments)
    from metavib.interfaces.cli.training.paper_table import reproduce_table

    return reproduce_table(arguments)
