"""`metavib evaluate`: measure a finished run again, on its unseen domain or on another."""

import argparse

from metavib.interfaces.cli.flags import add_shared

HELP = "measure a trained model on a domain"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "--json")
    parser.add_argument("run", metavar="RUN", help="a finished run directory")
    parser.add_argument("--domain", help="the domain to measure on (the run's held-out one)")
    parser.add_argument("--repeats", type=int, help="predictions with fresh draws (20)")
    add_shared(parser, "--skip-bad", help="measure without the files that cannot be read")
    add_shared(parser, "--backbone", "--data", "--memory", "--device", "--threads")


def run(arguments: argparse.Namespace) -> int:
    """Measure a run, and print the table."""
    from metavib.interfaces.cli.evaluation import evaluate_run

    return evaluate_run(arguments)
