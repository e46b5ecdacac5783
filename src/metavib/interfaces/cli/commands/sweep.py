"""`metavib sweep`: settings searched for, chosen by source data, and measured once; goes on where it was."""

import argparse

from metavib.interfaces.cli.flags import add_shared, check_checkpoint_seconds

HELP = "search for settings that a YAML file names, on this machine or many; goes on where it was"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "--json")
    parser.add_argument("file", metavar="FILE", help="what to try, in YAML: see docs/sweep.md and examples/")
    parser.add_argument("--out", help="where runs and the ranking go (runs/sweep/FILE)")
    parser.add_argument("--engine", default="local", help="local or ray (%(default)s)")
    parser.add_argument(
        "--workers",
        type=int,
        help="processes on this machine (one for each GPU, or for 4 CPU cores); of a Ray that is started here, "
        "its CPUs",
    )
    parser.add_argument(
        "--address", help="of a Ray cluster, or auto; one is started here where none is given"
    )
    parser.add_argument(
        "--gpus-per-task", type=float, metavar="SHARE", help="of Ray; 0.25 trains four on a GPU (1)"
    )
    parser.add_argument("--cpus-per-task", type=float, default=1.0, metavar="N", help="of Ray (%(default)s)")
    parser.add_argument(
        "--retries", type=int, default=3, help="attempts more for runs whose worker was lost (%(default)s)"
    )
    parser.add_argument("--batch", type=int, help="train so many runs as one program (as fits)")
    add_shared(parser, "--backbone", help="the network of your own that FILE names, again: only so is it run")
    add_shared(
        parser, "--no-batch", "--yes", "--skip-bad", "--checkpoint-seconds", "--data", "--device", "--threads"
    )


def run(arguments: argparse.Namespace) -> int:
    """Search, choose, measure, and print the ranking."""
    check_checkpoint_seconds(arguments)
    from metavib.interfaces.cli.training.sweep import sweep

    return sweep(arguments)
