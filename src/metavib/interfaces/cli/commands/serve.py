"""`metavib serve`: a model behind HTTP, with a page to try it on."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from typing import TYPE_CHECKING

from metavib.core.errors import UserError
from metavib.core.memory import give_large_blocks_back
from metavib.core.terminal import print_json, say
from metavib.interfaces.cli.flags import add_shared, asked_of, predictor_of

if TYPE_CHECKING:
    from metavib.serving.http.examples import ExampleShower
    from metavib.serving.http.limits import Limits
    from metavib.serving.predictor import Predictor

HELP = "classify images over HTTP, with a page to try a model on"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "--json", "model")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="0 takes any that is free (%(default)s)")
    parser.add_argument(
        "--token", help="clients must send it; needed for other machines. METAVIB_TOKEN hides it from 'ps'"
    )
    parser.add_argument(
        "--anyone-may-ask", action="store_true", help="listen to other machines without a token"
    )
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="a name that a proxy passes on"
    )
    parser.add_argument("--max-bytes", type=int, help="of an image (20,000,000)")
    parser.add_argument("--max-pixels", type=int, help="of an image (50,000,000)")
    parser.add_argument("--max-images", type=int, help="in one request (64)")
    parser.add_argument("--max-seconds", type=float, help="until a request has come (30)")
    add_shared(
        parser,
        "--mean",
        "--sampled",
        "--coverage",
        "--max-error",
        "--sets",
        "--seed",
        "--backbone",
        "--device",
        "--threads",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop."""
    import gc
    import logging

    from metavib.serving.http.guards import access_for
    from metavib.serving.http.listening import address_of, listen, serve
    from metavib.serving.http.server import build_app
    from metavib.serving.http.service import Service
    from metavib.serving.predictor import MODES

    token = arguments.token or os.environ.get("METAVIB_TOKEN") or None
    access = access_for(arguments.host, token, arguments.allow_host, anyone=arguments.anyone_may_ask)
    limits = limits_of(arguments)
    first = predictor_of(arguments)
    predictors: dict[str, Predictor] = {first.mode: first}
    predictors |= {mode: another(first, mode, arguments) for mode in MODES if mode != first.mode}
    service = Service(predictors, limits, shower_of(first, arguments))
    app = build_app(service, access)
    listener = listen(arguments.host, arguments.port)
    address = address_of(listener)

    def on_start() -> None:
        if arguments.json:
            print_json({"model": arguments.model, "address": address})
        say(f"{arguments.model} is served at {address} (Ctrl-C stops)")

    warnings.filterwarnings("ignore", module="PIL")  # clients' images; what matters becomes an answer
    # Not a line for each client that speaks no HTTP.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    give_large_blocks_back()
    gc.collect()
    gc.freeze()  # what is there now stays: looking through all of torch for garbage stopped the server for 0.4 s
    try:
        with listener:
            serve(app, listener, limits, on_start)
    finally:
        gc.unfreeze()  # or libraries complain at the end that things were left
    if not service.threads_ended:  # one has an image that takes long; all clients have their answers
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


def shower_of(first: Predictor, arguments: argparse.Namespace) -> ExampleShower | None:
    """Return what shows the training images that the model keeps; None without any, or damaged."""
    from pathlib import Path

    from metavib.models.directory import model_folder, places_of
    from metavib.models.examples import read_examples
    from metavib.serving.http.examples import ExampleShower

    kept, path = first.description.examples, Path(arguments.model)
    if kept is None:
        return None
    classes, features = len(first.classes), first.feature_width()
    try:
        examples = read_examples(model_folder(path), places_of(path), kept, classes, features)
    except UserError as error:
        say(f"no training images are shown: {error}")
        return None
    return ExampleShower(another(first, first.mode, arguments), examples)


def another(first: Predictor, mode: str, arguments: argparse.Namespace) -> Predictor:
    """A predictor of the same model that answers in this mode."""
    from metavib.serving.predictor import Predictor

    shared = first.algorithm, first.description, first.device
    return Predictor(*shared, arguments.seed, mode, **asked_of(arguments))


def limits_of(arguments: argparse.Namespace) -> Limits:
    """The limits that were given, and the others as they are."""
    from metavib.serving.http.limits import Limits

    if not 0 <= arguments.port <= 65535:
        raise UserError("--port must be a number from 0 to 65535; 0 is any free one.")
    given = {
        "image_bytes": arguments.max_bytes,
        "image_pixels": arguments.max_pixels,
        "images": arguments.max_images,
        "body_seconds": arguments.max_seconds,
    }
    for name, value in given.items():
        if value is not None and not value > 0:
            raise UserError(f"--max-{name.rpartition('_')[2]} must be above 0.")
    chosen = {name: value for name, value in given.items() if value is not None}
    if arguments.max_bytes:  # whoever takes larger images takes requests with at least one of them
        chosen["request_bytes"] = max(Limits.request_bytes, arguments.max_bytes + 10_000)
        chosen["waiting_bytes"] = max(Limits.waiting_bytes, 4 * chosen["request_bytes"])
    return Limits(**chosen)
