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
from metavib.training_arguments import (
    add_data,
    add_device,
    add_memory,
    add_reproduction,
    add_sweep,
    add_training,
)

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
    add_device(demo)

    data = commands["data"]
    data.add_argument(
        "dataset", metavar="DATASET", help="rotated-digits, rotated-mnist, pacs, vlcs, or a path"
    )
    add_data(data)

    add_training(commands["train"])

    evaluate = commands["evaluate"]
    evaluate.add_argument("run", metavar="RUN", help="a finished run directory")
    evaluate.add_argument("--domain", help="the domain to measure on (the run's held-out one)")
    evaluate.add_argument("--repeats", type=int, help="predictions with fresh draws (20)")
    evaluate.add_argument(
        "--skip-bad", action="store_true", help="measure without the files that cannot be read"
    )
    evaluate.add_argument("--data", help="where the datasets lie, if not in METAVIB_DATA")
    add_memory(evaluate)
    add_device(evaluate)

    _add_prediction(commands["predict"])

    _add_serving(commands["serve"])
    add_reproduction(commands["reproduce"])
    add_sweep(commands["sweep"])

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
    add_memory(report)
    add_device(report)

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
    add_device(bench)

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
    add_device(predict)


def _add_export(export: argparse.ArgumentParser) -> None:
    export.add_argument("model", metavar="MODEL", help="a model or run directory")
    export.add_argument("--format", default="onnx", help="onnx or torch-export (%(default)s)")
    export.add_argument("-o", "--out", metavar="FOLDER", help="where the files go (exported-FORMAT)")


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
    add_device(serve)


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
