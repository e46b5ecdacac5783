"""Checkpoints: what is saved is loaded; what is damaged is never loaded."""

import os

import pytest
import torch

from metavib.core.errors import UserError
from metavib.core.processes.group import ALONE
from metavib.training import checkpoint
from metavib.training.checkpoint import Checkpoint, in_words, newest, newest_of_first, save, steps
from metavib.training.selection import RunState


@pytest.fixture
def saved(tmp_path):
    """A folder with checkpoints of three steps, saved in turn."""
    for step in (1, 2, 3):
        tensors = {"weight": torch.full((4,), step / 7)}
        save(tmp_path, Checkpoint(step, tensors, (RunState(accuracy=0.1 * step),)), "me")
    return tmp_path


def test_a_checkpoint_comes_back_exactly(saved):
    found, complaints = newest(saved, "me")
    assert found is not None
    assert found.step == 3
    assert torch.equal(found.tensors["weight"], torch.full((4,), 3 / 7))
    assert found.states == (RunState(accuracy=0.1 * 3),)
    assert complaints == []


def test_the_newest_two_are_kept(saved):
    assert steps(saved) == [2, 3]
    assert len(list(saved.iterdir())) == 2 * checkpoint.KEPT


def test_tensors_that_a_kill_left_without_their_record_go_with_the_next_checkpoint(saved):
    for stem in ("00000001", "00000009"):  # half deleted, and half written
        (saved / f"{stem}.safetensors").touch()
    (saved / "mine.safetensors").touch()
    save(saved, Checkpoint(4, {"weight": torch.zeros(4)}, ()), "me")
    assert steps(saved) == [3, 4]
    assert {path.stem for path in saved.iterdir()} == {"00000003", "00000004", "mine"}


def test_an_empty_folder_has_none(tmp_path):
    assert newest(tmp_path, "me") == (None, [])
    assert newest(tmp_path / "missing", "me") == (None, [])


def test_tensors_without_their_record_do_not_count(saved):
    (saved / "00000003.json").unlink()
    found, complaints = newest(saved, "me")
    assert found is not None
    assert (found.step, complaints) == (2, [])


@pytest.mark.parametrize("name", ["00000003.json", "00000003.safetensors"])
def test_no_flipped_bit_and_no_cut_goes_unnoticed(saved, name):
    path = saved / name
    good = path.read_bytes()
    flipped = [good[:i] + bytes([good[i] ^ (1 << (i % 8))]) + good[i + 1 :] for i in range(len(good))]
    cut = [good[:length] for length in reversed(range(len(good.rstrip())))]
    with path.open("r+b", buffering=0) as file:
        for content in flipped + cut:
            os.pwrite(file.fileno(), content, 0)
            os.truncate(file.fileno(), len(content))
            found, complaints = newest(saved, "me")
            assert found is not None
            assert found.step == 2
            assert "step 3" in complaints[0]


def test_a_missing_file_is_passed_over(saved):
    (saved / "00000003.safetensors").unlink()
    found, complaints = newest(saved, "me")
    assert found is not None
    assert found.step == 2
    assert complaints == ["checkpoint of step 3 lacks a file"]


def test_where_none_can_be_used_the_user_decides(saved):
    with pytest.raises(
        UserError, match=r"step 3 belongs to another experiment; .*step 2.* Remove that folder"
    ):
        newest(saved, "somebody else")


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        (3, r"older version of metavib \(format 2; .* reads from 3"),
        (1, r"newer version .*format 2; .* up to 1"),
    ],
)
def test_another_format_is_not_guessed_at(saved, monkeypatch, ours, words):
    monkeypatch.setattr(checkpoint, "FORMAT", ours)
    for look in (lambda: newest(saved, "me"), lambda: checkpoint.require_readable(saved)):
        with pytest.raises(UserError, match=words):
            look()


def test_a_damaged_checkpoint_is_no_checkpoint_of_another_version(saved):
    (saved / "00000003.json").write_text('{"form')
    checkpoint.require_readable(saved)


def test_other_files_are_no_checkpoints(saved):
    (saved / "notes.json").write_text("{}")
    assert steps(saved) == [2, 3]


def test_whoever_lost_a_run_is_told_from_where_it_goes_on(saved, tmp_path):
    assert in_words(saved).startswith("The checkpoint of step 3 is good")
    assert in_words(tmp_path / "missing").startswith("There is no checkpoint yet")


def test_one_process_has_its_own_checkpoints(saved, tmp_path):
    def beginning():
        raise AssertionError

    found, complaints = newest_of_first(saved, ["me"], ALONE, beginning)
    assert found is not None
    assert (found.step, complaints) == (3, [])
    assert newest_of_first(tmp_path / "missing", ["me"], ALONE, beginning) == (None, [])


def test_a_run_of_a_stack_has_its_own_part():
    runs = (RunState(), RunState(stopped=4))
    stack = Checkpoint(9, {"weight": torch.tensor([[1.0], [2.0]])}, runs)
    assert stack.of_run(0).step == 9
    stopped = stack.of_run(1)
    assert (stopped.step, stopped.states) == (4, (RunState(stopped=4),))
    assert torch.equal(stopped.tensors["weight"], torch.tensor([[2.0]]))
