"""Two real processes train the model that one trains; and what happens to them when one is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pair_of_processes as pair
import pytest
import torch
from conftest import QUICK, Outcome
from pair_of_processes import RARE, STEPS, Torchrun
from places import PATIENCE
from safetensors.torch import load_file
from torch import Tensor

from metavib.algorithms import ALGORITHMS
from metavib.training.checkpoint import steps as checkpoint_steps
from metavib.training.run_directory import RunDirectory, WatchedDirectory

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="finds the processes in /proc"),
]


class Pair(NamedTuple):
    """What two processes left behind."""

    folder: Path
    images: Path
    out: str
    err: str

    def tensors(self, name: str) -> dict[str, Tensor]:
        return load_file(self.folder / f"{name}.safetensors")


@pytest.fixture(scope="module")
def both(make_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """One start of two processes for many tests."""
    folder = tmp_path_factory.mktemp("pair")
    images = make_folder(folder / "images")
    pair.trained("metavib", folder / "one-then-two", stop_after=9)
    command = ["train", str(images), *QUICK, "--json"]
    with Torchrun(pair.__file__, folder, *command, folder=folder) as started:
        _, out, err = started.outcome(PATIENCE)
    assert (folder / "one-then-two.safetensors").exists(), err
    return Pair(folder, images, out, err)


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name].double(), value.double(), rtol=0, atol=tolerance, msg=name)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_processes_train_the_model_of_one(both: Pair, name: str) -> None:
    alone = pair.stepped(name)
    moved = pair.trainee(name).algorithm.named_parameters()
    assert any((alone[parameter][0] - own).abs().max() > 1e-3 for parameter, own in moved)
    assert_close(both.tensors(f"stepped-{name}"), alone, 1e-8)


def test_there_was_a_class_that_one_process_alone_saw() -> None:
    seen = [pair.labels_of_each_process(step) for step in range(STEPS)]
    alone = [RARE in first and RARE not in second for first, second in seen]
    assert sum(alone) >= 5
    # The others have to do without it, or to share it.
    assert all(first >= {0, 1} and second >= {0, 1} for first, second in seen)


def test_validation_sees_all_images_once(both: Pair) -> None:
    ready = pair.trainee("metavib")
    assert_close(both.tensors("embedded"), pair.embedded(ready.algorithm, ready.sources), 1e-12)


def test_a_run_goes_on_with_another_number_of_processes(both: Pair, tmp_path: Path) -> None:
    alone = pair.trained("metavib", tmp_path / "one")
    assert_close(both.tensors("two"), alone, 1e-8)
    assert_close(both.tensors("one-then-two"), alone, 1e-8)
    assert checkpoint_steps(both.folder / "two-then-one" / "checkpoints")[-1] == 9
    assert_close(pair.trained("metavib", both.folder / "two-then-one"), alone, 1e-8)
    logs = [RunDirectory(both.folder / name).read_log() for name in ("one-then-two", "two-then-one")]
    for log in logs:
        assert [record["step"] for record in log] == list(range(1, STEPS + 1))


def test_a_whole_run_is_written_once_and_told_of_once(
    both: Pair, metavib: Callable[..., Outcome], tmp_path: Path
) -> None:
    assert metavib("train", both.images, *QUICK, "--out", tmp_path / "one").status == 0
    run = both.folder / "whole run"
    model, alone = (path / "model" / "model.safetensors" for path in (run, tmp_path / "one"))
    assert_close(load_file(model), load_file(alone), 1e-2)  # in float32 rounding grows; 1e-8 is shown above
    assert not list(run.rglob("*.part"))
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 3
    (printed,) = [json.loads(line) for line in both.out.splitlines()]
    assert printed == json.loads((run / "results.json").read_text()) | {"run": str(run)}
    assert both.err.count("unseen domain 'sketch'") == 1


def test_what_all_processes_find_wrong_one_says(both: Pair) -> None:
    said = [line for line in both.err.splitlines() if line.startswith("metavib: ")]
    assert len(said) == 1, both.err
    assert "nowhere" in said[0]
    assert not (both.folder / "refused").exists()


# --- faults -----------------------------------------------------------------------------------------------


@pytest.fixture
def long_run(training: Callable[..., list[str]], tmp_path: Path) -> Iterator[Torchrun]:
    """A run of two processes that has checkpoints and is far from its end."""
    command = training("--steps", 100_000, "--checkpoint-seconds", 0)
    with Torchrun("-m", "metavib", *command, folder=tmp_path) as started:
        until = time.monotonic() + PATIENCE
        while not checkpoint_steps(tmp_path / "run" / "checkpoints"):
            assert started.process.poll() is None, started.outcome()
            assert time.monotonic() < until
            time.sleep(0.02)
        yield started


def test_a_killed_process_ends_the_run_with_one_error_and_a_good_checkpoint(
    long_run: Torchrun,
    interrupted: Callable[..., Outcome],
    training: Callable[..., list[str]],
    tmp_path: Path,
) -> None:
    os.kill(long_run.workers()[1], signal.SIGKILL)
    status, out, err = long_run.outcome(PATIENCE)
    assert (status, out) == (1, "")
    assert not long_run.workers()
    (said,) = [line for line in err.splitlines() if line.startswith("metavib: ")]
    found = re.match(
        r"metavib: process 1 of 2, on \S+, stopped: .* The checkpoint of step (\d+) is good: "
        r"the same command goes on from there\.$",
        said,
    )
    assert found, said
    assert "Traceback" not in err.partition(said)[0]
    step = int(found.group(1))
    assert checkpoint_steps(tmp_path / "run" / "checkpoints")[-1] == step
    again = interrupted(*training("--steps", 100_000), after=2)
    assert f"stopped after step {step + 2} of" in again.err


def test_a_run_that_is_asked_to_stop_stops_after_a_step(
    long_run: Torchrun,
    interrupted: Callable[..., Outcome],
    training: Callable[..., list[str]],
    tmp_path: Path,
) -> None:
    os.kill(long_run.workers()[1], signal.SIGINT)  # one of them is enough
    _, _, err = long_run.outcome(PATIENCE)
    (said,) = [line for line in err.splitlines() if line.startswith("metavib: ")]
    found = re.match(r"metavib: stopped after step (\d+) of 100000; the run is kept\. To go on: (.*)", said)
    assert found, said
    assert (
        found.group(2)
        == f"torchrun --nproc-per-node 2 -m metavib train --out {tmp_path / 'run'} --checkpoint-seconds 0.0"
    )
    step = int(found.group(1))
    assert checkpoint_steps(tmp_path / "run" / "checkpoints")[-1] == step
    again = interrupted(*training("--steps", 100_000), after=1)
    assert f"stopped after step {step + 1} of" in again.err


# --- what needs no second process -------------------------------------------------------------------------


@pytest.fixture
def as_rank(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes this process look like one of torchrun's."""

    def become(rank: int) -> None:
        for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": str(rank)}.items():
            monkeypatch.setenv(name, value)

    return become


def test_torchrun_is_for_training_one_run(
    as_rank: Callable[[int], None], refused: Callable[..., str], metavib: Callable[..., Any]
) -> None:
    as_rank(0)
    assert "torchrun is for metavib train: call metavib describe by itself." in refused("describe")
    assert "name one target" in refused("train", "rotated-digits", "--target", "all")
    as_rank(1)
    assert metavib("describe") == (2, "", "")
    assert metavib("train", "rotated-digits", "--target", "all") == (2, "", "")


def test_torchrun_with_one_process_is_no_torchrun(
    as_rank: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, metavib: Callable[..., Any]
) -> None:
    as_rank(0)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert metavib("describe", "erm").status == 0


def test_a_process_that_does_not_write_leaves_no_trace(tmp_path: Path) -> None:
    directory = WatchedDirectory(tmp_path / "run")
    with directory.locked():
        directory.log({"step": 1})
        directory.log_information({"step": 1})
        directory.rewind_log(0)
    assert not list(tmp_path.iterdir())
