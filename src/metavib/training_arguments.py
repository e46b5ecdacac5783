"""What the commands that train take: `train`, `reproduce` and `sweep`; and flags that others share with them."""

from __future__ import annotations

import argparse


def add_training(train: argparse.ArgumentParser) -> None:
    train.add_argument(
        "dataset", metavar="DATASET", nargs="?", help="rotated-digits, rotated-mnist, pacs, vlcs, or a path"
    )
    train.add_argument(
        "--target",
        help="the domain that is held out; several as A,B, or all, make a grid; none trains on all domains",
    )
    train.add_argument(
        "--measured-by",
        nargs="+",
        metavar="RUNS",
        help="with --target none: run directories, or folders of them, that say what to expect of a new domain",
    )
    train.add_argument("--algorithm", help="a name that `metavib describe` lists (metavib); several as A,B")
    train.add_argument("--without", metavar="DOMAINS", help="domains that play no part, as A,B")
    train.add_argument("--preset", help="paper, fast, augmented or equal (fast)")
    train.add_argument("--steps", type=int, help="iterations, instead of the preset's")
    train.add_argument("--seed", type=int, help="a random one is chosen and printed where none is given")
    train.add_argument(
        "--seeds", help="a grid over so many seeds from 0, or over a list as 3,5,8 (90, is one)"
    )
    train.add_argument(
        "--out", help="the run directory (runs/DATASET-TARGET-ALGORITHM-SEED); of a grid, the folder of them"
    )
    train.add_argument("--backbone", help="the network; 'metavib describe' lists them")
    train.add_argument("--weights", help="imagenet, a file, or none")
    train.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="change a setting; A,B makes a grid"
    )
    train.add_argument(
        "--config", help="a YAML or JSON file with any of these and all settings: see docs/config.md"
    )
    train.add_argument("--skip-bad", action="store_true", help="train without the files that cannot be read")
    _add_recording(train)
    train.add_argument(
        "--checkpoint-seconds", type=float, default=30.0, help="time between checkpoints (%(default)s)"
    )
    _add_choice_of_model(train)
    train.add_argument("--batch", type=int, help="train so many runs of a grid as one program (as fits)")
    train.add_argument("--no-batch", action="store_true", help="train the runs of a grid one after another")
    _add_yes(train)
    add_data(train)
    add_memory(train)
    add_device(train)


def add_reproduction(reproduce: argparse.ArgumentParser) -> None:
    reproduce.add_argument(
        "name",
        metavar="TABLE",
        help="rotated-mnist, pacs, vlcs, ablation-pacs, ablation-vlcs, beta-pacs, beta-vlcs, "
        "beta-rotated-mnist or samples-pacs",
    )
    reproduce.add_argument(
        "--algorithms", nargs="+", metavar="NAME", help="the rows to measure (all we have)"
    )
    reproduce.add_argument("--targets", nargs="+", metavar="DOMAIN", help="the columns to measure (all)")
    reproduce.add_argument("--seeds", default="3", help="how many, or a list as 3,5,8 (%(default)s)")
    reproduce.add_argument("--preset", default="fast", help="paper, fast, augmented or equal (%(default)s)")
    reproduce.add_argument("--steps", type=int, help="iterations, instead of the preset's")
    reproduce.add_argument("--backbone", help="the network, instead of the preset's")
    reproduce.add_argument("--weights", help="imagenet, a file, or none")
    _add_choice_of_model(reproduce)
    reproduce.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="change a setting"
    )
    _add_recording(reproduce)
    reproduce.add_argument("--out", help="where runs and tables go (runs/reproduce/TABLE)")
    reproduce.add_argument("--plan", action="store_true", help="only say how long it would take")
    reproduce.add_argument("--no-batch", action="store_true", help="train the runs one after another")
    _add_yes(reproduce)
    reproduce.add_argument(
        "--checkpoint-seconds", type=float, default=30.0, help="time between checkpoints (%(default)s)"
    )
    add_data(reproduce)
    add_memory(reproduce)
    add_device(reproduce)


def add_sweep(sweep: argparse.ArgumentParser) -> None:
    sweep.add_argument("file", metavar="FILE", help="what to try, in YAML: see docs/sweep.md and examples/")
    sweep.add_argument("--out", help="where runs and the ranking go (runs/sweep/FILE)")
    sweep.add_argument("--engine", default="local", help="local or ray (%(default)s)")
    sweep.add_argument(
        "--workers",
        type=int,
        help="processes on this machine (one for each GPU, or for 4 CPU cores); of a Ray that is started here, "
        "its CPUs",
    )
    sweep.add_argument("--address", help="of a Ray cluster, or auto; one is started here where none is given")
    sweep.add_argument(
        "--gpus-per-task", type=float, metavar="SHARE", help="of Ray; 0.25 trains four on a GPU (1)"
    )
    sweep.add_argument("--cpus-per-task", type=float, default=1.0, metavar="N", help="of Ray (%(default)s)")
    sweep.add_argument(
        "--retries", type=int, default=3, help="attempts more for runs whose worker was lost (%(default)s)"
    )
    sweep.add_argument("--batch", type=int, help="train so many runs as one program (as fits)")
    sweep.add_argument("--no-batch", action="store_true", help="train the runs one after another")
    _add_yes(sweep)
    sweep.add_argument("--skip-bad", action="store_true", help="train without the files that cannot be read")
    sweep.add_argument(
        "--checkpoint-seconds", type=float, default=30.0, help="time between checkpoints (%(default)s)"
    )
    sweep.add_argument("--data", help="where the datasets lie, if not in METAVIB_DATA")
    add_device(sweep)


def _add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="begin a large grid without asking")


def _add_choice_of_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--select",
        metavar="RULE",
        help="source-validation, highest-validation, last, oracle (peeks), or leave-one-domain-out: the best of "
        "several values of --set by cross-validation over the source domains (source-validation)",
    )
    parser.add_argument("--average", metavar="HOW", help="averaged weights: none, ema or swad (none)")


def _add_recording(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--record-information",
        type=int,
        nargs="?",
        const=50,
        metavar="N",
        help="record the information plane so many times (50) through training, for 'metavib report'",
    )


def add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", help="where the datasets lie, if not in METAVIB_DATA")
    parser.add_argument("--protocol", help="of rotated-mnist: paper, paper-clockwise or domainbed (paper)")


def add_memory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        help="the most that the process may take, as 2GiB, if not in METAVIB_MEMORY: images that do not fit are "
        "read as they are needed (what is free)",
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps (%(default)s)")
    parser.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="of a CPU, that compute; of a sweep, those of each worker (one for each idle core; a run that goes "
        "on keeps the number that it began with)",
    )
