"""A real `metavib serve` with a small model of digits, and what it takes of the machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRAINING = ["--target", "0", "--seed", "1", "--steps", "30", "--device", "cpu"]


def environment(source: Path) -> dict[str, str]:
    """That of a process which takes metavib from this checkout."""
    return {**os.environ, "PYTHONPATH": str(source / "src")}


def small_model(folder: Path, source: Path = ROOT) -> Path:
    """A run directory with a model of rotated digits, trained for a moment by the code that will serve it."""
    run = folder / "run"
    command = [sys.executable, "-m", "metavib", "train", "rotated-digits", "--out", str(run), *TRAINING]
    subprocess.run(command, check=True, capture_output=True, env=environment(source))  # noqa: S603
    return run


@dataclass(frozen=True)
class Served:
    """A server process that answers."""

    process: subprocess.Popen[str]
    port: int

    @property
    def memory(self) -> int:
        """Resident bytes of the process, and those that its children have for themselves."""
        return _bytes(self.process.pid, "Rss") + sum(
            _bytes(child, "Private_Clean") + _bytes(child, "Private_Dirty")
            for child in _descendants(self.process.pid)
        )


@contextlib.contextmanager
def served(model: Path, source: Path = ROOT) -> Iterator[Served]:
    """The model behind HTTP on any free port of loopback."""
    command = [sys.executable, "-m", "metavib", "serve", str(model), "--port", "0", "--json"]
    process = subprocess.Popen(  # noqa: S603
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment(source)
    )
    try:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["address"]
        yield Served(process, int(address.rpartition(":")[2]))
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _bytes(process: int, what: str) -> int:
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0
    found = re.search(rf"^{what}:\s+(\d+) kB", text, re.MULTILINE)
    return 1024 * int(found[1]) if found else 0


def _descendants(process: int) -> list[int]:
    try:
        text = Path(f"/proc/{process}/task/{process}/children").read_text()
    except OSError:
        return []
    children = [int(child) for child in text.split()]
    return children + [below for child in children for below in _descendants(child)]
