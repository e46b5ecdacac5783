"""The processes of one machine: what they are started with."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from metavib.runs.sweep import local_engine
from metavib.runs.sweep.local_engine import LocalEngine

SOURCES = Path(local_engine.__file__).parents[3]


def test_a_worker_finds_the_package_of_its_driver_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, str]] = []
    real = subprocess.Popen

    def popen(command: list[str], *, env: dict[str, str], **options: Any) -> subprocess.Popen[str]:
        started.append(env)
        return real([sys.executable, "-c", ""], stdin=subprocess.PIPE, stdout=options["stdout"], text=True)

    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    monkeypatch.setattr(local_engine.subprocess, "Popen", popen)
    engine = LocalEngine(torch.device("cpu"), 1, tmp_path / "errors.txt")
    engine._hired()
    engine.close()
    first, *others = started[0]["PYTHONPATH"].split(os.pathsep)
    assert others == ["elsewhere"]
    assert Path(first) == SOURCES  # its folders `data` or `models` would hide modules of the user
    assert (SOURCES / "metavib" / "__init__.py").is_file()
