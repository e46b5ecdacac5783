"""Results on stdout, progress and warnings on stderr: commands as processes, with both streams apart.

`demo` takes too long for it: `test_demo.py` calls it in this process.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.processes

SMALL = {"steps": 2, "images_per_domain": 8, "repeats": 2, "validations": 1}

# By the command: what stands on stdout alone, and what stands on stderr alone, where it says anything there.
CASES: dict[str, tuple[list[str], list[str]]] = {
    "describe": (["algorithms:", "presets:"], []),
    "data": (["class", "warning: domain", "training can start."], []),
    "train": (["unseen domain 'sketch'", "class averaged accuracy", "the run is in"], ["training 3/3"]),
    "grid": (["Accuracy on the unseen domain", "Calibration error"], ["2 seeds = 2 runs.", "training 4/4"]),
    "evaluate": (
        ["source domain 'photo'", "class averaged accuracy"],
        ["measuring on its validation images"],
    ),
    "predict": (
        ["of the model", "probability", "entropy is in nats"],
        ["bad.png", "1 of 2 files could not be read"],
    ),
    "report": (["files written to", "report written to"], ["no figure information-plane"]),
    "export": (["mean.pt2", "largest difference to the model"], []),
    "sweep": (["1. erm", "ranking.md"], ["up to 2 trials for each algorithm", "up to 2 runs to choose by"]),
    "reproduce": (["ERM", "MetaVIB, paper", "table.md"], ["About "]),
    "serve": (["usage: metavib serve"], []),
}


@pytest.fixture
def commands(
    finished: Any, training: Callable[..., list[str]], folder: Path, tmp_path: Path
) -> dict[str, Any]:
    """A short call of each."""
    (tmp_path / "bad.png").write_bytes(b"no image")
    plan = {
        "dataset": str(folder),
        "targets": "sketch",
        "seeds": 1,
        "algorithms": "erm",
        "backbone": "digits",
    }
    plan |= {"weights": "none", "settings": SMALL, "space": {"learning_rate": [1e-3, 1e-2]}}
    (tmp_path / "sweep.json").write_text(json.dumps(plan))
    grid = training("--steps", 2, "--seeds", 2)
    position = grid.index("--seed")
    grid = grid[:position] + grid[position + 2 :]
    run, image = finished.run, finished.folder / "photo" / "cat" / "0.png"
    return {
        "describe": ["describe"],
        "data": ["data", folder],
        "train": training(),
        "grid": grid,
        "evaluate": ["evaluate", run, "--domain", "photo"],
        "predict": ["predict", run, image, tmp_path / "bad.png"],
        "report": ["report", run, "-o", tmp_path / "report.html"],
        "export": ["export", run, "--format", "torch-export", "-o", tmp_path / "exported"],
        "sweep": ["sweep", tmp_path / "sweep.json", "--out", tmp_path / "swept", "--workers", 1],
        "serve": ["serve", "--help"],
    }


@pytest.mark.parametrize("name", CASES)
def test_results_are_on_stdout_and_progress_on_stderr(
    program: list[str], commands: dict[str, Any], name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if name == "reproduce":
        data = request.getfixturevalue("real_data")
        flags = "rotated-mnist --algorithms erm --targets 75 --seeds 1 --steps 1 --set images_per_domain=10"
        commands[name] = [name, *flags.split(), "--data", data, "--out", tmp_path / "table"]
    done = subprocess.run(
        [*program, *map(str, commands[name])],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == (1 if name == "predict" else 0), done.stderr
    results, progress = CASES[name]
    for words in results:
        assert words in done.stdout
        assert words not in done.stderr
    for words in progress:
        assert words in done.stderr
        assert words not in done.stdout
    if not progress:
        assert done.stderr == ""
    assert "left" not in done.stdout.split()  # as of a bar: "3 s left"
    assert "---" not in done.stderr  # as under the head of a table
