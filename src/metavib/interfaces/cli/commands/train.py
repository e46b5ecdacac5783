"""`metavib train`: one run, from the start or from where it was, or a grid of them."""

import argparse

from metavib.core.errors import UserError
from metavib.core.processes.environment import started_by_torchrun
from metavib.interfaces.cli.flags import add_shared, check_checkpoint_seconds, data_root

HELP = "train on some domains and measure on one that is held out; resumes an unfinished run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "--json")
    add_shared(parser, "dataset", nargs="?")
    parser.add_argument(
        "--target",
        help="the domain that is held out; several as A,B, or all, make a grid; none trains on all domains",
    )
    parser.add_argument(
        "--measured-by",
        nargs="+",
        metavar="RUNS",
        help="with --target none: run directories, or folders of them, that say what to expect of a new domain",
    )
    parser.add_argument("--algorithm", help="a name that `metavib describe` lists (metavib); several as A,B")
    parser.add_argument("--without", metavar="DOMAINS", help="domains that play no part, as A,B")
    parser.add_argument(
        "--preset", help="paper, fast, augmented, equal, best or fitted (fast; for a folder of images fitted)"
    )
    add_shared(parser, "--steps")
    parser.add_argument("--seed", type=int, help="a random one is chosen and printed where none is given")
    parser.add_argument(
        "--seeds", help="a grid over so many seeds from 0, or over a list as 3,5,8 (90, is one)"
    )
    parser.add_argument(
        "--out", help="the run directory (runs/DATASET-TARGET-ALGORITHM-SEED); of a grid, the folder of them"
    )
    parser.add_argument(
        "--backbone",
        help="the network: a name that 'metavib describe' lists, timm:NAME, torchvision:NAME, or MODULE:FUNCTION",
    )
    add_shared(parser, "--weights", "--image-size", "--freeze")
    add_shared(parser, "--set", help="change a setting; A,B makes a grid")
    parser.add_argument(
        "--config", help="a YAML or JSON file with any of these and all settings: see docs/config.md"
    )
    add_shared(parser, "--skip-bad", "--record-information", "--checkpoint-seconds", "--select", "--average")
    add_shared(parser, "--log")
    parser.add_argument(
        "--calibrate",
        choices=("domains", "whole"),
        help="in the end, calibrate across the source domains as metavib calibrate does, with heads or by whole "
        "folds; it changes no result",
    )
    parser.add_argument("--batch", type=int, help="train so many runs of a grid as one program (as fits)")
    add_shared(parser, "--no-batch", help="train the runs of a grid one after another")
    parser.add_argument(
        "--together",
        metavar="N",
        help="train so many runs of a grid at a time, in processes that share the device; auto: as many as fit on "
        "a GPU, up to 4 (one at a time)",
    )
    parser.add_argument(
        "--compile",
        choices=("auto", "on", "off"),
        default="off",
        help="have torch.compile make the step faster, where it can: auto does so on a GPU, for networks without "
        "kernels of their own (%(default)s)",
    )
    add_shared(parser, "--yes", "--data", "--protocol", "--memory", "--device", "--threads")


def run(arguments: argparse.Namespace) -> int:
    """Train, and print what was measured."""
    check_checkpoint_seconds(arguments)
    if arguments.log:
        from metavib.interfaces.tracking.trackers import trackers_named

        trackers_named(arguments.log)  # one that is not there is an error before anything else is said
    from metavib.data.sources.published import MissingDataError

    try:
        return _train(arguments)
    except MissingDataError as error:
        from metavib.interfaces.cli.fetching import offer

        if not offer(error, data_root(arguments)):
            raise
    return _train(arguments)


def _train(arguments: argparse.Namespace) -> int:
    from metavib.interfaces.cli.training.grid import train_grid
    from metavib.interfaces.cli.training.grid_cells import is_grid
    from metavib.interfaces.cli.training.one_run import train_one

    if not is_grid(arguments):
        if arguments.together is not None:
            raise UserError("--together is for grids: name several targets, seeds, algorithms or settings.")
        return train_one(arguments)
    if started_by_torchrun():
        raise UserError(
            "torchrun trains one run in several processes: name one target, seed, algorithm and value of each "
            "setting. Grids are trained by metavib train without torchrun."
        )
    return train_grid(arguments)
