"""Bad input by the hundred: the short form of `make fuzz`, what it found once, and what its judge sees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forging import rewrite
from places import PATIENCE

import metavib
from metavib.training.run_directory import RunDirectory

pytestmark = pytest.mark.chaos

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
DEEP = "[" * 100_000 + "]" * 100_000  # deeper than any stack


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="it limits its own memory as Linux does")
def test_some_of_every_kind_end_as_they_should(tmp_path: Path) -> None:
    kinds = [
        "command lines",
        "configurations",
        "folders",
        "images",
        "checkpoints",
        "models",
        "weights",
        "paths",
        "special files",
        "poisoned models",
        "requests",
    ]
    record = tmp_path / "record.json"
    command = [sys.executable, EXPERIMENTS / "fuzz.py", "--here", "--kinds", *kinds, "--seed", "1"]
    environment = os.environ | {"PYTHONPATH": str(Path(metavib.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [*map(str, command), "--count", "8", "--seconds", "1e6", "--record", str(record)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    found = json.loads(record.read_text())
    assert found["failed"] == 0
    assert found["cases"] == 8 * len(kinds)


# --- the judge --------------------------------------------------------------------------------------------


@pytest.fixture
def fuzzing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Its modules."""
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    import fuzzing.judge
    import fuzzing.mutation

    yield fuzzing
    for name in [name for name in sys.modules if name.partition(".")[0] == "fuzzing"]:
        del sys.modules[name]


def test_the_judge_knows_a_good_end_from_a_bad_one(fuzzing: Any) -> None:
    judged = fuzzing.judge.judged
    assert judged("0", "", "") == []
    assert judged("2", "", "metavib: no.") == []
    assert judged("1", "", "1 image failed") == []
    assert judged("0", '{"probability": NaN}', "") == ["an answer is not finite"]
    for ending, err in (("1", ""), ("2", " \n"), ("3", "why"), ("-11", ""), ("0", "Traceback (most recent")):
        assert len(judged(ending, "", err)) == 1


WATCHED = """
import os, pickle, subprocess, sys
from pathlib import Path
from fuzzing.judge import Judge
import metavib.interfaces.cli.main
root = Path(sys.argv[1])
(root / "outside").mkdir()
(root / "outside" / "thesis.tex").write_text("mine")
judge = Judge(root)
deeds = {
    "inside": lambda: (root / "file").write_text("x"),
    "outside": lambda: (root / "outside" / "thesis.tex").write_text("yours"),
    "elsewhere": lambda: (root.parent / "elsewhere").write_text("x"),
    "moved": lambda: os.rename(root / "file", root.parent / "moved"),
    "removed": lambda: os.remove(root / "outside" / "thesis.tex"),
    "process": lambda: subprocess.run(["true"]),
    "shell": lambda: os.system("true"),
    "pickle": lambda: pickle.loads(b"cos\\nmkdir\\n."),
    "read": lambda: Path("/dev/null").read_bytes(),
}
for name, deed in deeds.items():
    def main(arguments):
        try:
            deed()
        except PermissionError:
            pass
        return 0
    metavib.interfaces.cli.main.main = main
    before = judge.verdicts.failed
    judge.call("x", [])
    print(name, judge.verdicts.failed - before)
assert (root / "outside" / "thesis.tex").read_text() == "mine"
"""


def test_the_judge_sees_and_forbids_what_is_done_to_the_machine(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    places = [str(EXPERIMENTS), str(Path(metavib.__file__).parents[1])]
    ended = subprocess.run(
        [sys.executable, "-c", WATCHED, str(root)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(places)},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    seen = dict(line.split() for line in ended.stdout.splitlines())
    assert {name for name, count in seen.items() if count == "0"} == {"inside", "read"}
    assert {path.name for path in tmp_path.iterdir()} == {"root"}


def test_bombs_are_real(fuzzing: Any, tmp_path: Path) -> None:
    import pickle

    bomb = fuzzing.mutation.pickle_bombs(tmp_path / "marker")["pickle 2"]
    pickle.loads(bomb)  # noqa: S301
    assert (tmp_path / "marker").is_dir()


# --- what it found ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"run": None},
        {"sha256": None},
        {"step": {}},
        {"step": 7},
        {"values": []},
        {"values": {}},
        {"values": {"runs": []}},
        {"values": {"runs": 3}},
        {"values": {"runs": [{"valley": {}}, {"valley": {}}]}},
        {"values": {"runs": [{"valley": {}, "accuracy": "high"}]}},
        {"values": {"runs": [{"valley": {"losses": "x"}}]}},
    ],
)
def test_a_forged_checkpoint_is_refused_in_words(
    metavib: Callable[..., Any],
    interrupted: Callable[..., Any],
    training: Callable[..., list[str]],
    tmp_path: Path,
    change: dict[str, Any],
) -> None:
    interrupted(*training(), after=2)
    for path in (tmp_path / "run" / "checkpoints").glob("*.json"):
        rewrite(path, lambda record: record | change)
    status, _, err = metavib(*training())
    assert status == 2
    assert "Traceback" not in err
    assert "Remove that folder" in err.splitlines()[-1]


@pytest.mark.parametrize(
    "change",
    [
        {"calibration": {"images": 1, "sampled": [0.0] * 101, "mean": [0.0] * 101, "class_distance": {}}},
        {"calibration": {"images": 1, "sampled": [0.0] * 101, "mean": [0.0] * 101, "class_distance": 0.0}},
        {"calibration": {"images": 1, "sampled": ["x"] * 101, "mean": [0.0] * 101, "class_distance": None}},
        {"calibration": []},
        {"classes": [1, 2]},
        {"classes": "cat"},
        {"frozen_normalisation": "no"},
        {"method": []},
        {"backbone": ["digits"]},
    ],
)
def test_a_forged_model_is_refused_in_words(
    refused: Callable[..., str], finished_copy: Any, change: dict[str, Any]
) -> None:
    rewrite(finished_copy.run / "model" / "config.json", lambda record: record | change)
    image = finished_copy.folder / "photo" / "cat" / "0.png"
    assert "config.json does not describe a model" in refused("predict", finished_copy.run, image)


def test_json_that_is_nested_too_deep_is_refused_wherever_it_is_read(
    refused: Callable[..., str], finished_copy: Any, tmp_path: Path
) -> None:
    image = finished_copy.folder / "photo" / "cat" / "0.png"
    (tmp_path / "config.json").write_text(DEEP)
    assert "not valid JSON" in refused(
        "train", "--config", tmp_path / "config.json", "--out", tmp_path / "new"
    )
    (finished_copy.run / "model" / "config.json").write_text(DEEP)
    assert "cannot be read" in refused("predict", finished_copy.run, image)
    (finished_copy.run / "experiment.json").write_text(DEEP)
    assert "cannot be read" in refused("evaluate", finished_copy.run)


def test_a_checkpoint_that_is_nested_too_deep_is_damaged(
    metavib: Callable[..., Any],
    interrupted: Callable[..., Any],
    training: Callable[..., list[str]],
    tmp_path: Path,
) -> None:
    interrupted(*training(), after=2)
    (tmp_path / "run" / "checkpoints" / "00000002.json").write_text(DEEP)
    status, _, err = metavib(*training())
    assert status == 2
    assert "checkpoint of step 2 cannot be read" in err


def test_lines_of_a_log_that_are_no_records_are_passed_over(
    interrupted: Callable[..., Any],
    metavib: Callable[..., Any],
    training: Callable[..., list[str]],
    tmp_path: Path,
) -> None:
    interrupted(*training(), after=2)
    log = tmp_path / "run" / "metrics.jsonl"
    log.write_text(log.read_text() + f'[]\n3\n{{"x": 1}}\n{{"step": "1"}}\n{DEEP}\n{"9" * 5000}\n')
    assert metavib(*training()).status == 0
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == [1, 2, 3]


def test_a_log_is_read_without_what_is_no_number(finished_copy: Any) -> None:
    directory = RunDirectory(finished_copy.run)
    sound = directory.read_log()
    for value in ({}, [1.0], "high", None, True):
        directory.log({"step": 4, "split": "x", "classification": value})
    assert len(sound) == 3
    assert directory.read_log() == sound


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("unseen_domain", None),
        ("seed", "one"),
        ("unseen", []),
        ("unseen", {}),
        ("unseen", {"images": 8, "measured_by": "x", "accuracy": 3}),
        ("protocol", {}),
    ],
)
def test_damaged_results_of_a_finished_run_are_named(
    refused: Callable[..., str], finished_copy: Any, name: str, value: Any
) -> None:
    path = finished_copy.run / "results.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    assert "results.json is damaged" in refused("train", "--out", finished_copy.run)


def test_a_name_with_a_zero_byte_is_a_bad_image(metavib: Callable[..., Any], finished: Any) -> None:
    status, _, err = metavib("predict", finished.run, "a\0b")
    assert status == 1
    assert "no file can have" in err
    assert "Traceback" not in err
