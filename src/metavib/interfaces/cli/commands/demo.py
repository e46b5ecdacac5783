"""`metavib demo`: the whole job on an embedded dataset, in minutes, with no download."""

import argparse

from metavib.interfaces.cli.flags import add_shared

HELP = "train MetaVIB and plain training on handwritten digits, in minutes, with no download"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "--json")
    parser.add_argument("--out", default="runs/demo", help="where the runs go (%(default)s)")
    parser.add_argument(
        "--targets",
        nargs="+",
        default=["0", "75"],
        metavar="ANGLE",
        help="the angles that are left out in turn, of 0 15 30 45 60 75 (0 75)",
    )
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--steps", type=int, help="iterations of each run, instead of the preset's")
    add_shared(parser, "--device", "--threads")


def run(arguments: argparse.Namespace) -> int:
    """Leave each angle out in turn, train both methods on the others, print what was measured."""
    from metavib.interfaces.cli.training.demo import run_demo

    return run_demo(arguments)
