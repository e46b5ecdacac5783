"""A new command is one new file and one line."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import metavib

pytestmark = pytest.mark.whole

NEW = '''"""`metavib greet`: says hello."""

import argparse

from metavib.core.terminal import print_json, print_result
from metavib.interfaces.cli.flags import add_shared

HELP = "say hello to somebody"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "--json")
    parser.add_argument("name", metavar="NAME", help="who is greeted")
    parser.add_argument("--loudly", action="store_true", help="with an exclamation mark")


def run(arguments: argparse.Namespace) -> int:
    text = f"hello {arguments.name}{'!' if arguments.loudly else ''}"
    print_result(text)
    if arguments.json:
        print_json({"said": text})
    return 0
'''


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package with one more file, and one more line."""
    copy = tmp_path / "src" / "metavib"
    shutil.copytree(Path(metavib.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    commands = copy / "interfaces" / "cli" / "commands"
    (commands / "greet.py").write_text(NEW)
    lines = (commands / "__init__.py").read_text().splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if '"describe"' in line)
    lines.insert(place + 1, '    "greet",\n')
    (commands / "__init__.py").write_text("".join(lines))
    return copy.parent


def called(package: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "metavib", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_a_new_command_has_help_flags_and_errors_like_the_others(package: Path) -> None:
    everything = called(package, "--help")
    assert everything.returncode == 0, everything.stderr
    assert re.search(r"^ +greet +say hello to somebody$", everything.stdout, re.MULTILINE)
    own = called(package, "greet", "--help")
    assert (own.returncode, own.stderr) == (0, "")
    assert own.stdout.startswith(
        "usage: metavib greet [-h] [--json] [--loudly] NAME\n\nSay hello to somebody.\n"
    )
    done = called(package, "greet", "you", "--loudly")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello you!\n", "")
    done = called(package, "greet", "you", "--json")
    assert (done.returncode, done.stdout, done.stderr) == (0, '{"said": "hello you"}\n', "hello you\n")
    refused = called(package, "greet", "you", "--loudy")
    assert refused.returncode == 2
    assert "unknown argument '--loudy'; did you mean '--loudly'?" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
