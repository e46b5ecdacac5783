"""The measurement of a newcomer's way: its steps are commands that there are, and a step that fails ends it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import front_door
import pytest
from places import ROOT

from metavib.interfaces.cli.parsing import parsers

STEPS = front_door.TO_A_PREDICTION | front_door.AFTERWARDS


@pytest.mark.parametrize("name", [name for name, words in STEPS.items() if words[0] == "make"])
def test_its_targets_are_those_of_the_makefile(name: str) -> None:
    command = [*STEPS[name], "--dry-run", "--always-make", "--directory", str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [name for name, words in STEPS.items() if "predict" in words])
def test_its_commands_are_understood(name: str) -> None:
    parsed = parsers()[0].parse_args(STEPS[name][1:])
    assert parsed.command == "predict"
    assert str(parsed.model) == front_door.MODEL


def test_a_step_is_timed_and_one_that_fails_ends_the_measurement(tmp_path: Path) -> None:
    fine, broken = [sys.executable, "-c", ""], [sys.executable, "-c", "raise SystemExit('no room')"]
    assert front_door.seconds_of("a step", fine, tmp_path, dict(os.environ)) > 0
    with pytest.raises(SystemExit, match=r"another step failed.*\n.*no room"):
        front_door.seconds_of("another step", broken, tmp_path, dict(os.environ))


def test_a_newcomer_has_no_settings_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("METAVIB_DATA", "somewhere")
    monkeypatch.setenv("PYTHONPATH", "somewhere")
    own = front_door.of_a_newcomer(tmp_path)
    assert "METAVIB_DATA" not in own
    assert "PYTHONPATH" not in own
    assert own["METAVIB_CACHE"] == str(tmp_path)
