"""Names that command a terminal: whatever a command shows of classes, domains and files, it does nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forging import rewrite

ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\r\u202e"
UNPRINTABLE = {*map(chr, range(32)), *map(chr, range(127, 160)), "\u202e"} - {"\n"}


@pytest.fixture
def hostile(finished_copy: Any) -> Path:
    """A run whose model, as somebody else sent it, calls its class and its domain so."""

    def renamed(value: Any) -> Any:
        if isinstance(value, str):
            return {"cat": f"cat{ESCAPES}", "sketch": f"sketch{ESCAPES}"}.get(value, value)
        if isinstance(value, list):
            return [renamed(one) for one in value]
        if isinstance(value, dict):
            return {renamed(name): renamed(one) for name, one in value.items()}
        return value

    experiment = finished_copy.run / "experiment.json"
    experiment.write_text(json.dumps(renamed(json.loads(experiment.read_text()))))
    rewrite(finished_copy.run / "model" / "config.json", renamed)
    return finished_copy.run


COMMANDS = {
    "predict": ("predict", "RUN", "IMAGE"),
    "predict --csv": ("predict", "RUN", "IMAGE", "--csv"),
    "predict --json": ("predict", "RUN", "IMAGE", "--json"),
    "describe": ("describe", "RUN"),
    "describe a model": ("describe", "MODEL"),
    "describe --json": ("describe", "RUN", "--json"),
    "evaluate": ("evaluate", "RUN"),
    "evaluate --json": ("evaluate", "RUN", "--json"),
    "data": ("data", "FOLDER"),
    "data --json": ("data", "FOLDER", "--json"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_shows_an_escape_of_a_name(
    command: str, hostile: Path, folder: Path, metavib: Callable[..., Any]
) -> None:
    own = folder / "sketch" / "cat"
    image = shutil.copy(own / "0.png", own / f"image{ESCAPES}.png")
    (folder / "photo" / "cat").rename(folder / "photo" / f"cat{ESCAPES}")
    given = {"RUN": hostile, "MODEL": hostile / "model", "IMAGE": image, "FOLDER": folder}
    outcome = metavib(*(given.get(word, word) for word in COMMANDS[command]))
    shown = (outcome.out + outcome.err).replace("\r\n", "\n")  # lines of a CSV end so
    assert not UNPRINTABLE & {*shown}
    assert "\\x1b[2J" in shown or "\\u001b[2J" in shown  # the name was shown, so that it could have done harm
