"""`metavib serve`: a model behind HTTP, with a page to try it on."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import warnings

from metavib.commands.predict import mode_of
from metavib.errors import UserError
from metavib.serving.guards import access_for
from metavib.serving.limits import Limits
from metavib.serving.listening import address_of, listen, serve
from metavib.serving.predictor import MODES, Predictor, load
from metavib.serving.server import build_app
from metavib.serving.service import Service
from metavib.terminal import print_json, say


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop."""
    token = arguments.token or os.environ.get("METAVIB_TOKEN") or None
    access = access_for(arguments.host, token, arguments.allow_host, anyone=arguments.anyone_may_ask)
    limits = limits_of(arguments)
    first = load(
        arguments.model,
        device=arguments.device,
        seed=arguments.seed,
        mode=mode_of(arguments),
        coverage=arguments.coverage,
    )
    predictors = {first.mode: first} | {
        mode: Predictor(
            first.algorithm, first.description, first.device, arguments.seed, mode, arguments.coverage
        )
        for mode in MODES
        if mode != first.mode
    }
    service = Service(dict(predictors), limits)
    app = build_app(service, access)
    listener = listen(arguments.host, arguments.port)
    address = address_of(listener)

    def on_start() -> None:
        if arguments.json:
            print_json({"model": arguments.model, "address": address})
        say(f"{arguments.model} is served at {address} (Ctrl-C stops)")

    warnings.filterwarnings("ignore", module="PIL")  # clients' images; what matters becomes an answer
    logging.getLogger("uvicorn.error").setLevel(
        logging.ERROR
    )  # not a line for each client that speaks no HTTP
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


def limits_of(arguments: argparse.Namespace) -> Limits:
    """The limits that were given, and the others as they are."""
    if not 0 <= arguments.port <= 65535:
        raise UserError("--port takes a number from 0 to 65535; 0 takes any that is free.")
    given = {
        "image_bytes": arguments.max_bytes,
        "image_pixels": arguments.max_pixels,
        "images": arguments.max_images,
        "body_seconds": arguments.max_seconds,
    }
    for name, value in given.items():
        if value is not None and not value > 0:
            raise UserError(f"--max-{name.rpartition('_')[2]} takes a number above 0.")
    chosen = {name: value for name, value in given.items() if value is not None}
    if arguments.max_bytes:  # whoever takes larger images takes requests with at least one of them
        chosen["request_bytes"] = max(Limits.request_bytes, arguments.max_bytes + 10_000)
        chosen["waiting_bytes"] = max(Limits.waiting_bytes, 4 * chosen["request_bytes"])
    return Limits(**chosen)
