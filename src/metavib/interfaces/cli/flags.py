"""Flags that several commands share, each declared once, and what they mean together."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metavib.core.errors import UserError

if TYPE_CHECKING:
    from metavib.serving.predictor import Predictor


def share_of(text: str) -> float:
    """A share, as 90% or 0.9."""
    number = text.strip().removesuffix("%")
    try:
        value = float(number)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share: give it as 90% or 0.9") from None
    return value / 100 if text.strip().endswith("%") else value


SHARED: dict[str, dict[str, Any]] = {
    "--json": {"action": "store_true", "help": "put one JSON object on stdout"},
    "dataset": {
        "metavar": "DATASET",
        "help": "rotated-digits, pacs or another name that 'metavib describe' lists, or a path",
    },
    "--data": {"help": "where the datasets lie, if not in METAVIB_DATA"},
    "--protocol": {"help": "of rotated-mnist: paper, paper-clockwise or domainbed (paper)"},
    "--memory": {
        "metavar": "SIZE",
        "help": "the most that the process may take, as 2GiB, if not in METAVIB_MEMORY: images that do not fit "
        "are read as they are needed (what is free)",
    },
    "--device": {"default": "auto", "help": "auto, cpu, cuda or mps (%(default)s)"},
    "--threads": {
        "type": int,
        "metavar": "N",
        "help": "of a CPU, that compute; of a sweep, those of each worker (one for each idle core; a run that "
        "goes on keeps the number that it began with)",
    },
    # Of commands that train.
    "--steps": {"type": int, "help": "iterations, instead of the preset's"},
    "--weights": {
        "help": "imagenet (of our networks), pretrained (of timm's and torchvision's), a file, or none"
    },
    "--image-size": {"type": int, "metavar": "N", "help": "side of the images, instead of the network's own"},
    "--freeze": {
        "nargs": "?",
        "const": "all",
        "metavar": "stages=N",
        "help": "keep the network as it is, and train what lies on its features, which are computed once: for a "
        "CPU. stages=N keeps its first N stages, and trains the rest on images",
    },
    "--set": {"action": "append", "default": [], "metavar": "NAME=VALUE", "help": "change a setting"},
    "--skip-bad": {"action": "store_true", "help": "train without the files that cannot be read"},
    "--record-information": {
        "type": int,
        "nargs": "?",
        "const": 50,
        "metavar": "N",
        "help": "record the information plane so many times (50) through training, for 'metavib report'",
    },
    "--checkpoint-seconds": {
        "type": float,
        "default": 30.0,
        "help": "time between checkpoints (%(default)s)",
    },
    "--select": {
        "metavar": "RULE",
        "help": "source-validation, highest-validation, last, oracle (peeks), or leave-one-domain-out: the best "
        "of several values of --set by cross-validation over the source domains (source-validation)",
    },
    "--average": {"metavar": "HOW", "help": "averaged weights: none, ema, sma or swad (none)"},
    "--log": {
        "action": "append",
        "default": [],
        "metavar": "TRACKER",
        "help": "tell tensorboard, mlflow or wandb what metrics.jsonl holds, and in the end results and figures; "
        "several as A,B",
    },
    "--no-batch": {"action": "store_true", "help": "train the runs one after another"},
    "--yes": {"action": "store_true", "help": "begin a large grid without asking"},
    # Of commands that predict.
    "model": {"metavar": "MODEL", "help": "a model or run directory"},
    "--backbone": {
        "metavar": "MODULE:FUNCTION",
        "help": "the network, for a model of a network of your own: its code is not in the model",
    },
    "--mean": {
        "action": "store_true",
        "help": "draw nothing: the same labels and probabilities, and nothing about disagreeing classifiers",
    },
    "--sampled": {
        "action": "store_true",
        "help": "labels and probabilities from the draws too: --seed changes them",
    },
    "--coverage": {
        "type": share_of,
        "metavar": "SHARE",
        "help": "answer so many images as sure (90%%): of a new domain, where the model was calibrated across "
        "domains; of source validation otherwise",
    },
    "--max-error": {
        "type": share_of,
        "metavar": "SHARE",
        "help": "instead of --coverage: at most so many of the sure answers wrong on a new domain, as 5%%",
    },
    "--sets": {
        "type": share_of,
        "metavar": "SHARE",
        "help": "also the set of labels that holds the right one so often on a new domain, as 90%%",
    },
    "--seed": {"type": int, "default": 0, "help": "of the draws (%(default)s)"},
}


def add_shared(parser: argparse.ArgumentParser, *names: str, **changes: Any) -> None:
    """Give a command these flags; `changes` are what it declares differently."""
    for name in names:
        parser.add_argument(name, **SHARED[name] | changes)


def data_root(arguments: argparse.Namespace) -> Path | None:
    """Where the datasets lie, if it was said."""
    return Path(arguments.data) if arguments.data else None


def frozen_by(text: str | None) -> dict[str, Any]:
    """The settings that `--freeze` stands for."""
    if text is None:
        return {}
    if text == "all":
        return {"frozen": True}
    name, _, number = text.partition("=")
    if name.strip() == "stages" and number.strip().isdecimal() and int(number) > 0:
        return {"frozen_stages": int(number)}
    raise UserError(
        f"--freeze takes nothing, or stages=N with N from 1, not {text!r}. Give the dataset before it, as in "
        "metavib train DATASET --freeze."
    )


def check_checkpoint_seconds(arguments: argparse.Namespace) -> None:
    """Refuse a time that is negative or not finite."""
    if not math.isfinite(arguments.checkpoint_seconds) or arguments.checkpoint_seconds < 0:
        raise UserError("--checkpoint-seconds must be a number from 0.")


def asked_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `load`: a coverage or an error, and sets."""
    from metavib.models.calibration import COVERAGE

    if arguments.coverage is not None and arguments.max_error is not None:
        raise UserError(
            "--coverage and --max-error both say when an answer is unsure: leave one of them out."
        )
    coverage = COVERAGE if arguments.coverage is None else arguments.coverage
    return {"coverage": coverage, "max_error": arguments.max_error, "sets": arguments.sets}


def predictor_of(arguments: argparse.Namespace) -> Predictor:
    """The model, to be asked as the flags of a command that predicts say."""
    from metavib.serving.predictor import load

    where = {"device": arguments.device, "backbone": arguments.backbone}
    return load(arguments.model, seed=arguments.seed, mode=mode_of(arguments), **where, **asked_of(arguments))


def mode_of(arguments: argparse.Namespace) -> str:
    """How the model is asked."""
    from metavib.serving.predictor import MODES

    if arguments.mean and arguments.sampled:
        raise UserError("--mean draws nothing, and --sampled answers by draws: leave one of them out.")
    return "mean" if arguments.mean else "sampled" if arguments.sampled else MODES[0]
