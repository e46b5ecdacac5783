"""The run directory: its log survives kills, its descriptions are read with care."""

import json

import pytest

from metavib.core.errors import UserError
from metavib.core.json_record import read_json
from metavib.training.run_directory import RunDirectory


@pytest.fixture
def directory(tmp_path):
    run = RunDirectory(tmp_path)
    for step in (1, 2, 3):
        run.log({"step": step, "loss": 1 / step})
    return run


def test_what_is_logged_is_read_back_exactly(directory):
    assert directory.read_log() == [{"step": step, "loss": 1 / step} for step in (1, 2, 3)]


def test_a_last_line_that_a_kill_cut_off_is_passed_over(directory):
    content = directory.metrics.read_bytes()
    for length in range(1, len(content)):
        directory.metrics.write_bytes(content[:length])
        records = directory.read_log()
        assert records == [{"step": step, "loss": 1 / step} for step in range(1, len(records) + 1)]
        assert len(records) >= content[:length].count(b"\n")


def test_rewinding_forgets_later_steps_and_leaves_the_others_as_they_were(directory):
    lines = directory.metrics.read_text().splitlines(keepends=True)
    directory.rewind_log(2)
    assert directory.metrics.read_text() == "".join(lines[:2])
    directory.rewind_log(0)
    assert directory.read_log() == []


def test_the_log_refuses_numbers_that_are_not_finite(directory):
    with pytest.raises(ValueError, match="JSON"):
        directory.log({"step": 4, "loss": float("nan")})
    assert len(directory.read_log()) == 3


def test_a_second_user_of_the_directory_is_refused(directory):
    with directory.locked(), pytest.raises(UserError, match="in use by another process"), directory.locked():
        pass


def test_a_directory_that_got_nothing_but_its_lock_goes_again(directory, tmp_path):
    empty = RunDirectory(tmp_path / "runs" / "empty")
    with empty.locked():
        assert empty.path.is_dir()
    assert not empty.path.exists()
    with directory.locked():
        pass
    assert len(directory.read_log()) == 3


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"3", b"\xff\xfe"])
def test_what_is_no_json_object_is_named(tmp_path, content):
    (tmp_path / "file.json").write_bytes(content)
    with pytest.raises(UserError, match=r"file\.json"):
        read_json(tmp_path / "file.json")


def test_a_missing_description_says_what_the_folder_is_not(tmp_path):
    with pytest.raises(UserError, match="not a finished run or model directory"):
        read_json(tmp_path / "config.json")


def test_json_comes_back(tmp_path):
    (tmp_path / "file.json").write_text(json.dumps({"a": [1, None]}))
    assert read_json(tmp_path / "file.json") == {"a": [1, None]}
