"""stdout that is full, closed or left: one line and status 2, or a quiet end."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from metavib.interfaces.cli.main import main

pytestmark = pytest.mark.processes

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="a device that is always full is Linux's")


def commands(finished: Any, out: Path) -> list[list[str]]:
    """One call of every command that ends by itself, in a form that is short."""
    image = str(finished.folder / "photo" / "cat" / "0.png")
    run = str(finished.run)
    return [
        [],
        ["describe", "erm"],
        ["describe"],
        ["describe", "--json"],
        ["describe", run],
        ["data", str(finished.folder)],
        ["data", str(finished.folder), "--json"],
        ["predict", run, image],
        ["predict", run, image, "--csv"],
        ["predict", run, image, "--json"],
        ["evaluate", run],
        ["export", run, "--format", "torch-export", "-o", str(out / "exported")],
        ["report", run, "--figure", "training", "-o", str(out / "report.html")],
        finished.command,
    ]


def ended(program: list[str], arguments: list[str], redirection: str, unbuffered: str) -> tuple[int, str]:
    """Exit status and stderr of a command whose stdout goes where the shell's redirection says."""
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *program, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
    )
    return done.returncode, done.stderr


LINE = (
    "metavib: cannot write to stdout: No space left on device. Make room there, or send it to another place."
)


@needs_full
def test_a_full_stdout_is_one_line_and_status_2_in_every_command(
    finished: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called = commands(finished, tmp_path)
    assert {words[0] for words in called if words} >= {
        "describe",
        "data",
        "predict",
        "evaluate",
        "export",
        "report",
        "train",
    }
    for arguments in called:
        capsys.readouterr()
        with monkeypatch.context() as patch, FULL.open("w") as full:
            patch.setattr("sys.stdout", full)
            assert main(arguments) == 2, arguments
        said = capsys.readouterr().err
        assert [line for line in said.splitlines() if line.startswith("metavib: ")] == [LINE], arguments
        assert said.splitlines()[-1] == LINE
        assert "Traceback" not in said


@needs_full
@pytest.mark.parametrize(("number", "unbuffered"), [(0, ""), (0, "1"), (2, ""), (8, ""), (8, "1")])
def test_a_process_with_a_full_stdout_says_nothing_more_when_it_ends(
    program: list[str], finished: Any, tmp_path: Path, number: int, unbuffered: str
) -> None:
    arguments = commands(finished, tmp_path)[number]
    assert ended(program, arguments, ">/dev/full", unbuffered) == (2, LINE + "\n")


def test_a_closed_stdout_is_refused_before_anything_is_done(
    program: list[str], finished: Any, tmp_path: Path
) -> None:
    for arguments in commands(finished, tmp_path):
        status, said = ended(program, arguments, ">&-", "")
        assert (status, said) == (
            2,
            "metavib: stdout is closed, and results go there: leave it open, or send it to a file.\n",
        )
    assert not list(tmp_path.iterdir())


@needs_full
@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_a_stderr_that_takes_nothing_leaves_the_results_and_the_status(
    program: list[str], finished: Any, redirection: str
) -> None:
    def call(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            ["sh", "-c", f'exec "$@" {redirection}', "sh", *program, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    status, out = call(*finished.command)
    assert status == 0
    assert "unseen domain 'sketch'" in out
    assert "finished already" not in out
    assert call("describe", "nothing-of-that-name") == (2, "")


def test_a_command_without_stdin_reads_no_names(program: list[str], finished: Any) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *program, "predict", str(finished.run), "-", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_character_that_the_encoding_lacks_is_written_out(program: list[str]) -> None:
    done = subprocess.run(
        [*program, "describe", "metavib"],
        capture_output=True,
        check=False,
        env=os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    done.stdout.decode("ascii")
