"""`metavib predict`: labels, probabilities and uncertainty for image files, any number of them."""

from __future__ import annotations

import argparse
import io
import math
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import NoReturn, cast

from metavib.commands.outcome import checked_on
from metavib.commands.prediction_forms import CSV, Form, JSONLines, Table
from metavib.data.images import EXTENSIONS
from metavib.errors import UserError
from metavib.foreign_text import visible
from metavib.serving.predictor import BATCH, MODES, Predictor, load
from metavib.serving.streaming import answers
from metavib.standard_output import Output
from metavib.terminal import Bar, print_result, say

STDIN = "-"
LONGEST_NAME = 1 << 16  # of bytes without an end: whatever that is, it is no list of files


def run(arguments: argparse.Namespace) -> int:
    """Classify the files as they come. Those that cannot be read are named, and the status is 1 in the end."""
    check(arguments)
    predictor = load(
        arguments.model,
        device=arguments.device,
        seed=arguments.seed,
        mode=mode_of(arguments),
        coverage=arguments.coverage,
    )
    total = None if STDIN in arguments.files else sum(1 for _ in image_files(arguments.files))
    if predictor.threshold is None:
        say(
            "the model keeps no thresholds: nothing is marked as unsure. Models trained from now on have them."
        )
    out = Output()  # before there is a bar, which would take it over
    form = form_of(arguments, predictor, out)
    read = unreadable = 0
    with Bar("images", total, last_line=False, hidden=out.isatty()) as bar, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's are about metadata that is not used here
        bar.update(0)
        for answer in answers(predictor, file_names(arguments.files, null=arguments.null)):
            read += 1
            if answer.prediction is None:
                unreadable += 1
                bar.say(f"metavib: {visible(answer.problem)}")
            else:
                form.write(answer.name, answer.prediction)
            if read % BATCH == 0:
                out.flush()
                bar.update(read)
        form.end()
        bar.update(read)
    if isinstance(form, Table) and read > unreadable:
        explain(predictor)
    if predictor.clipped:
        say(
            f"{predictor.clipped} of {read} file(s) have values beyond those of the training images "
            f"({predictor.pixel_range.in_words}): they were clipped."
        )
    if unreadable:
        say(f"metavib: {unreadable} of {read} files could not be read.")
    return 1 if unreadable else 0


def mode_of(arguments: argparse.Namespace) -> str:
    """How the model is asked."""
    if arguments.mean and arguments.sampled:
        raise UserError("--mean draws nothing, and --sampled answers by draws: leave one of them out.")
    return "mean" if arguments.mean else "sampled" if arguments.sampled else MODES[0]


def check(arguments: argparse.Namespace) -> None:
    """Refuse what does not go together, before the model is loaded."""
    if arguments.json and arguments.csv:
        raise UserError("--json and --csv exclude each other.")
    if arguments.samples and arguments.mean:
        raise UserError("--samples shows drawn classifiers, and --mean draws none: leave one of them out.")
    if arguments.top is not None and arguments.top < 1:
        raise UserError(f"--top {arguments.top} is no number of classes: give 1 or more.")
    if arguments.null and STDIN not in arguments.files:
        raise UserError("-0 is about names on standard input: give - as FILE.")


def form_of(arguments: argparse.Namespace, predictor: Predictor, out: Output) -> Form:
    """How the answers are to be written."""
    draws = predictor.draws if arguments.samples else 0
    if arguments.samples and not draws:
        say(f"{predictor.description.algorithm} draws no classifiers: there are no samples to show.")
    kind = JSONLines if arguments.json else CSV if arguments.csv else Table
    top = arguments.top and min(arguments.top, len(predictor.classes))
    return kind(out, predictor.classes, top, draws)


def explain(predictor: Predictor) -> None:
    """What the numbers of the table mean."""
    text = f"entropy is in nats: 0 is sure, {math.log(len(predictor.classes)):.3f} is no idea"
    if predictor.threshold is not None:
        text += (
            f"; unsure is above {predictor.threshold:.3f}, which {predictor.coverage:.0%} of the source "
            f"validation images do not exceed ({checked_on(predictor.checked_on)})"
        )
    print_result(f"{text}.")


def file_names(given: Sequence[str], *, null: bool) -> Iterator[str]:
    """The files given, the images in the folders given, and for - those named on standard input."""
    for name in given:
        if name != STDIN:
            yield from image_files([name])
            continue
        if sys.stdin.isatty():
            say("file names, one a line; Ctrl-D ends them:")
        for listed in names_in(cast(io.BufferedIOBase, sys.stdin.buffer), null=null):
            yield from images_in(listed) if os.path.isdir(listed) else [listed]


def image_files(given: Sequence[str]) -> Iterator[str]:
    """The files given, and the images in the folders given; a folder without any is refused."""
    for name in given:
        if not os.path.isdir(name):
            yield name
            continue
        empty = True
        for found in images_in(name):
            empty = False
            yield found
        if empty:
            raise UserError(f"{name} holds no images.")


def images_in(folder: str) -> Iterator[str]:
    """The images in a folder and the folders in it, in the order of their names, one folder at a time."""

    def refuse(error: OSError) -> NoReturn:
        raise UserError(f"cannot look into {error.filename} ({error.strerror}). Check its permissions.")

    for where, folders, files in os.walk(folder, onerror=refuse):
        folders.sort()
        yield from (os.path.join(where, name) for name in sorted(files) if name.lower().endswith(EXTENSIONS))


def names_in(stream: io.BufferedIOBase, *, null: bool) -> Iterator[str]:
    """File names from a stream, as they come: one a line, or each up to a NUL."""
    rest = b""
    while content := stream.read1(1 << 16):
        *whole, rest = (rest + content).split(b"\0" if null else b"\n")
        if len(rest) > LONGEST_NAME:
            raise UserError("standard input holds no file names. Give names of files, one a line.")
        yield from filter(None, (_name(raw, null=null) for raw in whole))
    if name := _name(rest, null=null):
        yield name


def _name(raw: bytes, *, null: bool) -> str:
    if null:
        return os.fsdecode(raw)
    if b"\0" in raw:
        raise UserError("there is a NUL in a file name on standard input. Use -0 where names end with NUL.")
    return os.fsdecode(raw.removesuffix(b"\r"))  # a list may have been written on Windows
