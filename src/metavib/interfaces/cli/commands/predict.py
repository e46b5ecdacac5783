"""`metavib predict`: labels, probabilities and uncertainty for image files, any number of them."""

import argparse
import warnings

from metavib.core.errors import UserError
from metavib.core.foreign_text import visible
from metavib.core.standard_output import Output
from metavib.core.terminal import Bar, say
from metavib.interfaces.cli.flags import add_shared, predictor_of

HELP = "classify images, with probability and uncertainty"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "--json", help="put a JSON object for each image on stdout")
    add_shared(parser, "model")
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="images, folders of images, or - for names on stdin"
    )
    parser.add_argument("--csv", action="store_true", help="put CSV on stdout")
    parser.add_argument("--top", type=int, metavar="K", help="the K most probable classes")
    parser.add_argument(
        "--samples", action="store_true", help="also the probabilities under each drawn classifier"
    )
    add_shared(parser, "--mean", "--sampled")
    parser.add_argument(
        "-0", "--null", action="store_true", help="names on stdin end with NUL, not a new line"
    )
    add_shared(parser, "--coverage", "--max-error", "--sets", "--seed", "--backbone", "--device", "--threads")


def run(arguments: argparse.Namespace) -> int:
    """Classify the files as they come. Those that cannot be read are named, and the status is 1 in the end."""
    from metavib.interfaces.cli.prediction.files import STDIN, file_names, image_files
    from metavib.interfaces.cli.prediction.forms import TableForm, explain, form_of
    from metavib.serving.predictor import BATCH
    from metavib.serving.streaming import answers

    check_combination(arguments)
    predictor = predictor_of(arguments)
    total = None if STDIN in arguments.files else sum(1 for _ in image_files(arguments.files))
    if predictor.threshold is None and predictor.assurance is None:
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
    if isinstance(form, TableForm) and read > unreadable:
        explain(predictor)
    if predictor.clipped:
        say(
            f"{predictor.clipped} of {read} file(s) have values beyond those of the training images "
            f"({predictor.pixel_range.in_words}): they were clipped."
        )
    if unreadable:
        say(f"metavib: {unreadable} of {read} files could not be read.")
    return 1 if unreadable else 0


def check_combination(arguments: argparse.Namespace) -> None:
    """Refuse what does not go together, before the model is loaded."""
    from metavib.interfaces.cli.prediction.files import STDIN

    if arguments.json and arguments.csv:
        raise UserError("--json and --csv exclude each other.")
    if arguments.samples and arguments.mean:
        raise UserError("--samples shows drawn classifiers, and --mean draws none: leave one of them out.")
    if arguments.top is not None and arguments.top < 1:
        raise UserError(f"--top {arguments.top} must be 1 or more.")
    if arguments.null and STDIN not in arguments.files:
        raise UserError("-0 is about names on standard input: give - as FILE.")
