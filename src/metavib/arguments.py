"""What the commands take.

It is written with argparse: `python -m metavib` must run where only torch is installed, and argparse is always
there and imports in a few milliseconds.
"""

from __future__ import annotations

import argparse
from typing import NoReturn

from metavib import __version__
from metavib.errors import UserError
from metavib.standard_output import Output

COMMANDS = {
    "demo": "train and compare four methods on handwritten digits, in minutes, with no download",
    "data": "look at a dataset: domains, classes, sizes, and everything that is wrong with it",
    "train": "train on some domains and measure on one that is held out; resumes an unfinished run",
    "evaluate": "measure a trained model on a domain",
    "predict": "classify images, with probability and uncertainty",
    "serve": "classify images over HTTP, with a page to try a model on",
    "reproduce": "measure a table of the paper, with its numbers beside ours; goes on where it was",
    "sweep": "search for settings that a YAML file names, on this machine or many; goes on where it was",
    "report": "turn run directories into one page of tables and figures, and files for a paper",
    "export": "turn a model into ONNX or a torch.export program, with the draws as inputs",
    "bench": "measure how fast training, prediction and data are on this machine",
    "describe": "explain an algorithm, dataset, backbone, preset, setting, run or model",
}


class Parser(argparse.ArgumentParser):
    """argparse, with errors of one line, of stdout too."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}. See '{self.prog} --help'.")

    def _print_message(self, message: str, file: object = None) -> None:
        """Help and version. argparse itself passes over a stdout that takes nothing."""
        Output().write(message)


def parsers() -> tuple[Parser, dict[str, Parser]]:
    """The parser of the whole command line, and that of each command."""
    parser = Parser(
        prog="metavib",
        description="Image classifiers that work on sources they have never seen, and say when they are unsure.",
        epilog="Start with: metavib demo",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"metavib {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands = {
        name: subparsers.add_parser(
            name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False
        )
        for name, text in COMMANDS.items()
    }
    for name, command in commands.items():
        one = "a JSON object for each image" if name == "predict" else "one JSON object"
        command.add_argument("--json", action="store_true", help=f"put {one} on stdout")

    demo = commands["demo"]
    demo.add_argument("--out", default="runs/demo", help="where the runs go (%(default)s)")
    demo.add_argument(
        "--targets",
        nargs="+",
        default=["0", "30", "75"],
        metavar="ANGLE",
        help="the angles that are left out in turn, of 0 15 30 45 60 75 (0 30 75)",
    )
    demo.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    demo.add_argument("--steps", type=int, help="iterations of each run, instead of the preset's")
    _add_device(demo)

    data = commands["data"]
    data.add_argument(
        "dataset", metavar="DATASET", help="rotated-digits, rotated-mnist, pacs, vlcs, or a path"
    )
    _add_data(data)

    _add_training(commands["train"])

    evaluate = commands["evaluate"]
    evaluate.add_argument("run", metavar="RUN", help="a finished run directory")
    evaluate.add_argument("--domain", help="the domain to measure on (the run's held-out one)")
    evaluate.add_argument("--repeats", type=int, help="predictions with fresh draws (20)")
    evaluate.add_argument(
        "--skip-bad", action="store_true", help="measure without the files that cannot be read"
    )
    evaluate.add_argument("--data", help="where the datasets lie, if not in METAVIB_DATA")
    _add_memory(evaluate)
    _add_device(evaluate)

    _add_prediction(commands["predict"])

    _add_serving(commands["serve"])
    _add_reproduction(commands["reproduce"])
    _add_sweep(commands["sweep"])

    report = commands["report"]
    report.add_argument("runs", metavar="RUNS", nargs="+", help="run directories, or folders that hold some")
    report.add_argument(
        "-o", "--out", default="report.html", help="the page; figures go beside it (%(default)s)"
    )
    report.add_argument(
        "--figure",
        action="append",
        default=[],
        metavar="NAME",
        help="only this figure, and no page: training, uncertainty, confusion, cases, classifiers, embedding or "
        "information-plane; several as A,B",
    )
    report.add_argument("--data", help="where the datasets lie, if not in METAVIB_DATA")
    _add_memory(report)
    _add_device(report)

    _add_export(commands["export"])

    bench = commands["bench"]
    bench.add_argument("--quick", action="store_true", help="without the loop that decodes files")
    bench.add_argument("--rounds", type=int, default=7, help="measurements on a CPU (%(default)s)")
    bench.add_argument("--widest", type=int, help="the most runs to stack (64 on a GPU, 4 on a CPU)")
    bench.add_argument(
        "--scaling",
        action="store_true",
        help="instead, how cost grows with images, classes and domains (docs/scaling.md)",
    )
    _add_device(bench)

    describe = commands["describe"]
    describe.add_argument(
        "name", metavar="NAME", nargs="?", help="what to explain; everything there is, without it"
    )
    describe.add_argument(
        "--dataset",
        help="show what the preset gives for this one: a known name, or a path (either kind of data)",
    )
    describe.add_argument("--preset", default="fast", help="whose values of settings are shown (%(default)s)")
    describe.add_argument("--algorithm", default="metavib", help="for which algorithm (%(default)s)")
    return parser, commands


def _add_prediction(predict: argparse.ArgumentParser) -> None:
    predict.add_argument("model", metavar="MODEL", help="a model or run directory")
    predict.add_argument(
        "files", metavar="FILE", nargs="+", help="images, folders of images, or - for names on stdin"
    )
    predict.add_argument("--csv", action="store_true", help="put CSV on stdout")
    predict.add_argument("--top", type=int, metavar="K", help="the K most probable classes")
    predict.add_argument(
        "--samples", action="store_true", help="also the probabilities under each drawn classifier"
    )
    _add_mode(predict)
    predict.add_argument(
        "-0", "--null", action="store_true", help="names on stdin end with NUL, not a new line"
    )
    _add_coverage(predict)
    predict.add_argument("--seed", type=int, default=0, help="of the draws (%(default)s)")
    _add_device(predict)


def _add_export(export: argparse.ArgumentParser) -> None:
    export.add_argument("model", metavar="MODEL", help="a model or run directory")
    export.add_argument("--format", default="onnx", help="onnx or torch-export (%(default)s)")
    export.add_argument("-o", "--out", metavar="FOLDER", help="where the files go (exported-FORMAT)")


def _add_training(train: argparse.ArgumentParser) -> None:
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
    _add_data(train)
    _add_memory(train)
    _add_device(train)


def _add_serving(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("model", metavar="MODEL", help="a model or run directory")
    serve.add_argument("--host", default="127.0.0.1", help="the address to listen on (%(default)s)")
    serve.add_argument("--port", type=int, default=8000, help="0 takes any that is free (%(default)s)")
    serve.add_argument(
        "--token", help="clients must send it; needed for other machines. METAVIB_TOKEN hides it from 'ps'"
    )
    serve.add_argument(
        "--anyone-may-ask", action="store_true", help="listen to other machines without a token"
    )
    serve.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="a name that a proxy passes on"
    )
    serve.add_argument("--max-bytes", type=int, help="of an image (20,000,000)")
    serve.add_argument("--max-pixels", type=int, help="of an image (50,000,000)")
    serve.add_argument("--max-images", type=int, help="in one request (64)")
    serve.add_argument("--max-seconds", type=float, help="until a request has come (30)")
    _add_mode(serve)
    _add_coverage(serve)
    serve.add_argument("--seed", type=int, default=0, help="of the draws (%(default)s)")
    _add_device(serve)


def _add_reproduction(reproduce: argparse.ArgumentParser) -> None:
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
    _add_data(reproduce)
    _add_memory(reproduce)
    _add_device(reproduce)


def _add_sweep(sweep: argparse.ArgumentParser) -> None:
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
    _add_device(sweep)


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


def _add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", help="where the datasets lie, if not in METAVIB_DATA")
    parser.add_argument("--protocol", help="of rotated-mnist: paper, paper-clockwise or domainbed (paper)")


def _add_memory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        help="the most that the process may take, as 2GiB, if not in METAVIB_MEMORY: images that do not fit are "
        "read as they are needed (what is free)",
    )


def _add_mode(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mean",
        action="store_true",
        help="draw nothing: the same labels and probabilities, and nothing about disagreeing classifiers",
    )
    parser.add_argument(
        "--sampled",
        action="store_true",
        help="labels and probabilities from the draws too: --seed changes them",
    )


def _add_coverage(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--coverage",
        type=float,
        default=0.9,
        metavar="SHARE",
        help="an image is unsure where it has more entropy than this share of source validation (%(default)s)",
    )


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps (%(default)s)")
    parser.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="of a CPU, that compute; of a sweep, those of each worker (one for each idle core; a run that goes "
        "on keeps the number that it began with)",
    )
