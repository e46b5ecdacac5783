"""`metavib report`: run directories as one page, and as figures for a paper."""

import argparse
from pathlib import Path

from metavib.core.errors import UserError
from metavib.core.terminal import print_json
from metavib.interfaces.cli.flags import add_shared, data_root
from metavib.reports.figures import FIGURES

HELP = "turn run directories into one page of tables and figures, and files for a paper"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "--json")
    parser.add_argument("runs", metavar="RUNS", nargs="+", help="run directories, or folders that hold some")
    parser.add_argument(
        "-o", "--out", default="report.html", help="the page; figures go beside it (%(default)s)"
    )
    parser.add_argument(
        "--figure",
        action="append",
        default=[],
        metavar="NAME",
        help=f"only this figure, and no page: {', '.join(FIGURES)}; several as A,B",
    )
    add_shared(parser, "--backbone", "--data", "--memory", "--device", "--threads")


def run(arguments: argparse.Namespace) -> int:
    """Read the runs, ask their models, draw, write."""
    from metavib.core.device import resolve_device
    from metavib.interfaces.cli.reporting import figure_names, write_report
    from metavib.nn.own_network import own_network

    asked_for = figure_names(arguments.figure)
    out = Path(arguments.out)
    if out.is_dir():
        raise UserError(f"{out} is a folder: give the page a name, as -o {out / 'report.html'}.")
    runs = [Path(path) for path in arguments.runs]
    where = data_root(arguments), resolve_device(arguments.device), own_network(arguments.backbone)
    record = write_report(runs, out, asked_for, *where)
    if arguments.json:
        print_json(record)
    return 0
