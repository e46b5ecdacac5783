"""Load: 64 clients at once are answered without an error; how fast is for `make attacks` and records to say."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from places import PATIENCE, ROOT

pytestmark = pytest.mark.load


def test_clients_count_what_is_no_right_answer(running, image, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    from load import clients

    pixels = [("image/png", image())] * 4
    ways = {
        "a file": (clients.file_requests(pixels, 1), 1, 0.0),
        "a form": (clients.file_requests(pixels, 2), 2, 0.0),
        "an array": (clients.array_requests(pixels, 4, tables=False), 4, 0.0),
        "an array for a table": (clients.array_requests(pixels, 4, tables=True), 4, 0.0),
        "no image": ([clients.post("image/png", b"hello")], 1, 1.0),
        "half of them": ([clients.post("image/png", b"hello"), clients.post("image/png", image())], 1, 0.5),
    }
    for name, (requests, count, share) in ways.items():
        told = clients.play(running.address, os.getpid(), requests, count, clients=8, seconds=0.2)
        assert (told["errors"] == 0) == (share == 0), name
        assert (told["images_a_second"] == 0) == (share == 1), name


def test_an_answer_for_fewer_images_is_not_right(running, image, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    from load import clients

    for tables in (False, True):
        (request,) = clients.array_requests([("image/png", image())] * 4, 4, tables=tables)
        told = clients.play(running.address, os.getpid(), [request], 5, clients=2, seconds=0.0)
        assert told["errors"] == 1  # of two answers, the first one is read


def test_64_clients_at_once_are_held(program, finished):
    command = [*program, "serve", str(finished.run), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            address = json.loads(process.stdout.readline())["address"]
            script = [
                sys.executable,
                str(ROOT / "experiments" / "serving_load.py"),
                "digits",
                str(finished.run),
            ]
            done = subprocess.run(
                [*script, "--clients-of", address, "--server", str(process.pid), "--seconds", "2"],
                capture_output=True,
                text=True,
                check=True,
            )
            told = json.loads(done.stdout)
        finally:
            process.terminate()
            assert process.wait(PATIENCE) == 0
    assert told["errors"] == 0
    assert told["images_a_second"] > 0
