"""Runs of a grid in several processes: what they leave is what they leave one after another."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from metavib.interfaces.cli.training import together
from metavib.runs.capacity import together_of
from metavib.runs.cells import Cell
from metavib.runs.one_run import ExecutionContext
from metavib.training.experiment import experiment_from

Training = Callable[..., list[str]]
FILES = ("model/model.safetensors", "metrics.jsonl", "results.json")


@pytest.fixture
def grid(training: Training, tmp_path: Path) -> Callable[..., list[str]]:
    """The arguments of a grid of three runs."""

    def arguments(out: str, *more: Any) -> list[str]:
        flags = ("--target", "art,photo,sketch", "--no-batch", "--threads", 1, "--yes", *more)
        return training(*flags, out=tmp_path / out)

    return arguments


@pytest.fixture
def inline(inline_engine: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """No processes are started; what the engine was asked for."""
    asked = []

    def engine(*given: Any) -> Any:
        asked.append(given)
        return inline_engine(None, Path()).__enter__()

    monkeypatch.setattr(together, "LocalEngine", engine)
    return asked


def assert_same_runs(first: Path, second: Path) -> None:
    runs = sorted(path.name for path in second.iterdir() if path.is_dir() and path.name[0] != ".")
    assert len(runs) == 3
    for run in runs:
        for name in FILES:
            assert (first / run / name).read_bytes() == (second / run / name).read_bytes(), (run, name)


def test_a_grid_is_shown_and_measured_as_ever(
    metavib: Any, grid: Any, inline: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    outcome = metavib(*grid("together", "--together", 2))
    assert outcome.status == 0
    assert inline[0][:2] == (torch.device("cpu"), 2)
    assert "Up to 2 runs at a time" in outcome.err
    assert "3 of 3 runs done" in outcome.err
    alone = metavib(*grid("alone"))
    assert alone.out.replace("alone", "together") == outcome.out
    assert_same_runs(tmp_path / "together", tmp_path / "alone")
    again = metavib(*grid("together", "--together", 2))  # all are finished
    assert (again.status, again.out) == (0, outcome.out)


def test_no_more_processes_than_runs_and_auto_on_a_cpu_is_one(
    metavib: Any, grid: Any, inline: list[tuple[Any, ...]]
) -> None:
    assert metavib(*grid("many", "--together", 9)).status == 0
    assert metavib(*grid("auto", "--together", "auto")).status == 0
    assert [count for _, count, _ in inline] == [3, 1]


def test_a_stop_keeps_the_runs_and_says_how_to_go_on(
    interrupted: Any, metavib: Any, grid: Any, inline: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    outcome = interrupted(*grid("stopped", "--together", 2), after=1)
    assert "the runs are kept. To go on:" in outcome.err
    assert "--together 2" in outcome.err
    assert metavib(*grid("stopped", "--together", 2)).status == 0
    assert metavib(*grid("alone")).status == 0
    assert_same_runs(tmp_path / "stopped", tmp_path / "alone")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--together", "0"], "--together must be a number of processes from 1 to 64, or auto, not 0."),
        (["--together", "two"], "not two."),
        (["--together", "1e9"], "not 1e9."),
        (["--together", "2", "--log", "tensorboard"], "--log follows the runs of one process"),
        (
            ["--together", "2", "--select", "leave-one-domain-out", "--set", "beta=.1,.2"],
            "leave --together out",
        ),
        (["--together", "2", "--target", "art"], "--together is for grids"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    refused: Any, grid: Any, flags: list[str], words: str, tmp_path: Path
) -> None:
    assert words in refused(*grid("none", *flags))
    assert not (tmp_path / "none").exists()


def test_on_a_gpu_as_many_as_fit(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the memory that a run takes, and by the images that each process has for itself."""
    values = {"dataset": str(folder), "target": "art", "seed": 0, "weights": "none"}
    settings = {"images_per_domain": 4, "latent_width": 8}
    cells = [
        Cell(
            experiment_from(values | {"backbone": "digits-domainbed", "seed": seed}, settings),
            tmp_path / str(seed),
        )
        for seed in range(6)
    ]
    small = [Cell(experiment_from(values | {"backbone": "digits"}, settings), tmp_path / "small")] * 2
    context = ExecutionContext(torch.device("cpu"))
    assert together_of(cells, context, None) == 1
    from metavib.runs import capacity

    opened = capacity.open_run
    monkeypatch.setattr(capacity, "open_run", lambda *given: opened(given[0], given[1], context))
    on_gpu = ExecutionContext(torch.device("cuda"))
    for free, count in ((100 << 30, 4), (4 << 30, 2), (1 << 30, 1)):
        monkeypatch.setattr(capacity, "free_memory", lambda device, free=free: free)
        assert together_of(cells, on_gpu, None) == count
    assert together_of(cells[:1], on_gpu, None) == 1
    assert together_of(small, on_gpu, None) == 1  # these are stacked


@pytest.mark.processes
def test_two_processes_leave_the_same_bytes_and_a_kill_leaves_no_trace(
    program: list[str], grid: Any, metavib: Any, tmp_path: Path
) -> None:
    flags = ("--steps", 40, "--checkpoint-seconds", 0)
    command = [*program, *grid("together", "--together", 2, *flags)]
    first = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while first.poll() is None and not list((tmp_path / "together").glob("*/checkpoints/*")):
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert metavib(*grid("alone", *flags)).status == 0
    assert_same_runs(tmp_path / "together", tmp_path / "alone")
