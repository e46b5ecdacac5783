"""Many runs: how they are divided, and that each leaves what it would have left alone."""

import json
import multiprocessing
import signal
import time

import pytest
import torch

from metavib.core.errors import UserError
from metavib.data.store.storage import ImageStore
from metavib.interfaces.cli.main import main
from metavib.runs import grid
from metavib.runs import one_run as runner
from metavib.runs.grid import run_grid
from metavib.runs.one_run import ExecutionContext, run_experiment, train_and_measure
from metavib.training import checkpoint
from metavib.training.loop import Stopped
from metavib.training.run_directory import RunDirectory

pytestmark = pytest.mark.stacks

CPU = torch.device("cpu")
TARGETS = ("art", "photo", "sketch")
BREAKS_DOWN = {"learning_rate": 1e30, "clip_norm": 0.0}


@pytest.fixture
def widths(monkeypatch):
    """How many runs were trained at a time, call by call."""
    seen = []

    def train_and_tell(stack, *others):
        seen.append(len(stack))
        return train_and_measure(stack, *others)

    monkeypatch.setattr(grid, "train_and_measure", train_and_tell)
    return seen


def trained(cells, batch=None, **context):
    return run_grid(cells, ExecutionContext(CPU, **context), batch=batch)


def stopped(cells, batch, after):
    """Train, and stop after so many steps."""
    steps = iter(range(after - 1))
    with pytest.raises(Stopped):
        trained(cells, batch, stop=lambda: next(steps, None) is None)


def model_of(one):
    return (one.out / "model" / "model.safetensors").read_bytes()


def log_of(one):
    return RunDirectory(one.out).read_log()


def stacks_beside(one):
    return list((one.out.parent / ".stacks").glob("*"))


# --- what comes out ---------------------------------------------------------------------------------------


def test_stacked_runs_leave_the_files_and_results_that_they_leave_alone(cell, widths):
    changes = [{"learning_rate": 1e-3}, {"learning_rate": 5e-4, "beta": 0.1}, {"validation_share": 0.3}]
    together, alone = (
        [
            cell(target, seed, "metavib", place, **own)
            for target, seed, own in zip(TARGETS, (1, 2, 3), changes, strict=True)
        ]
        for place in ("together", "alone")
    )
    said = []
    stacked, single = trained(together, 3, say=said.append), trained(alone, 1)
    assert widths == [3, 1, 1, 1]
    assert "3 runs are trained as one program." in said
    assert [one.cell for one in stacked] == together  # in the order that was asked for
    assert stacks_beside(together[0]) == []
    for mine, own in zip(stacked, single, strict=True):
        assert files_in(mine.cell.out) == files_in(own.cell.out)
        assert mine.failure is own.failure is None
        here, there = mine.results.to_json(), own.results.to_json()
        assert here == json.loads((mine.cell.out / "results.json").read_text())
        assert here.keys() == there.keys()
        for part in ("unseen", "source_validation"):
            found, expected = here.pop(part), there.pop(part)
            one_image = 1 / found["images"]
            assert found.keys() == expected.keys()
            assert found["accuracy"]["mean"] == pytest.approx(expected["accuracy"]["mean"], abs=one_image)
            assert found["nll"]["mean"] == pytest.approx(expected["nll"]["mean"], rel=0.01)
        assert here == there


def files_in(run):
    return sorted(str(path.relative_to(run)) for path in run.rglob("*"))


def test_a_finished_run_is_not_trained_again_and_a_new_one_is(cell, widths):
    cells = [cell(target) for target in TARGETS]
    first = trained(cells[:2], 2)
    said = []
    again = trained(cells, 2, say=said.append)
    assert widths == [2, 1]
    assert [one.results for one in again[:2]] == [one.results for one in first]
    assert sum("is finished already" in line for line in said) == 2
    assert again[2].results.unseen_domain == "sketch"


def test_runs_that_may_not_be_stacked_are_trained_apart(cell, widths):
    cells = [cell("art"), cell("art", weight_decay=0.1), cell("photo"), cell("art", algorithm="vib")]
    assert [one.cell for one in trained(cells, 4)] == cells
    assert sorted(widths) == [1, 1, 2]


def test_runs_of_the_same_images_read_them_once(cell, monkeypatch):
    read = []  # of how many domains at a time
    read_all = ImageStore._read_all
    monkeypatch.setattr(ImageStore, "_read_all", lambda own: read.append(len(own.parts)) or read_all(own))
    done = trained([*(cell("art", seed) for seed in (1, 2, 3)), cell("photo", 1)], batch=1)
    # The sources, then the target of each run at its end; the last run has other sources.
    assert read == [3, 1, 1, 1, 3, 1]
    alone = trained([cell("art", 3, place="alone")])
    assert done[2].results == alone[0].results


def test_progress_counts_the_steps_of_all_runs(cell):
    shown = []
    trained([cell(target) for target in TARGETS], 2, show=shown.append)
    assert {progress.steps for progress in shown} == {12}
    steps = [progress.step for progress in shown]
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (0, 12)
    worked = [progress.worked for progress in shown]
    assert worked == sorted(worked)
    assert worked[0] == 0
    assert worked[-1] < 12  # the last run has still to be measured
    trained([cell(target) for target in TARGETS] + [cell("art", 2)], 2, show=shown.append)
    assert [progress.step for progress in shown[len(steps) :]] == [12, 13, 14, 15, 16]


# --- interruptions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["all stacks", "one stack"])
def test_nothing_is_written_or_removed_where_a_link_among_stacks_leads(cell, tmp_path, level):
    cells = [cell(target, seed) for target, seed in zip(TARGETS, (1, 2, 3), strict=True)]
    stopped(cells, 3, after=2)
    (stack,) = stacks_beside(cells[0])
    place = stack.parent if level == "all stacks" else stack
    place.rename(tmp_path / "mine")
    place.symlink_to(tmp_path / "mine")
    before = {path: path.read_bytes() for path in (tmp_path / "mine").rglob("*") if path.is_file()}
    for batch in (3, 1):
        with pytest.raises(UserError, match="is a link that leads out of"):
            trained(cells, batch)
    assert {path: path.read_bytes() for path in (tmp_path / "mine").rglob("*") if path.is_file()} == before


def test_a_new_stack_does_not_begin_where_a_link_leads(cell, tmp_path):
    cells = [cell(target, seed) for target, seed in zip(TARGETS, (1, 2, 3), strict=True)]
    (tmp_path / "mine").mkdir()
    cells[0].out.parent.mkdir(parents=True, exist_ok=True)
    (cells[0].out.parent / ".stacks").symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match="is a link that leads out of"):
        trained(cells, 3)
    assert not list((tmp_path / "mine").iterdir())


def test_an_interrupted_stack_goes_on_as_the_very_same_stack(cell, widths):
    cells = [cell(target, seed) for target, seed in zip(TARGETS, (1, 2, 3), strict=True)]
    unstopped = [
        cell(target, seed, place="unstopped") for target, seed in zip(TARGETS, (1, 2, 3), strict=True)
    ]
    trained(unstopped, 3)
    stopped(cells, 3, after=2)
    assert not any((one.out / "results.json").exists() for one in cells)
    (stack,) = stacks_beside(cells[0])
    assert checkpoint.steps(stack) == [2]
    trained(cells[::-1], 1)  # neither another order nor another width divides it
    assert widths == [3, 3, 3]
    assert stacks_beside(cells[0]) == []
    for mine, other in zip(cells, unstopped, strict=True):
        assert model_of(mine) == model_of(other)
        assert log_of(mine) == log_of(other)


def test_a_grid_of_other_runs_takes_its_own_out_of_a_stack_and_goes_on_with_them_alone(cell, widths):
    cells = [cell(target) for target in TARGETS]
    stopped(cells, 3, after=2)
    before = [log_of(one) for one in cells]
    first, new = trained([cells[0], cell("cartoon")], 2)
    assert widths == [3, 1, 1]
    assert checkpoint.steps(RunDirectory(cells[0].out).checkpoints) == [2, 4]
    assert log_of(cells[0])[:2] == before[0]
    assert [record["step"] for record in log_of(cells[0])] == [1, 2, 3, 4]
    assert first.results.unseen_domain == "art"
    assert new.results.unseen_domain == "cartoon"
    # The two that were left behind lose nothing either.
    rest = trained(cells, 3)
    assert widths == [3, 1, 1, 1, 1]
    assert all(one.results is not None for one in rest)
    for one, log in zip(cells, before, strict=True):
        assert checkpoint.steps(RunDirectory(one.out).checkpoints) == [2, 4]
        assert log_of(one)[:2] == log


def test_a_run_that_was_begun_alone_goes_on_alone(cell, widths):
    cells = [cell(target) for target in TARGETS]
    stopped(cells[:1], 1, after=2)
    trained(cells, 3)
    assert widths == [1, 1, 2]


def test_kills_leave_no_trace_in_any_run_of_a_stack(training, tmp_path):
    def command(out):
        flags = ("--target", "art,photo,sketch", "--batch", 3, "--steps", 16, "--checkpoint-seconds", 0)
        return training(*flags, out=tmp_path / out)

    def newest_step():
        steps = [s for stack in (tmp_path / "killed" / ".stacks").glob("*") for s in checkpoint.steps(stack)]
        return max(steps, default=0)

    # Each is a real process; the server that they are forked from has imported torch already.
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["metavib.interfaces.cli.training.grid"])
    for step in (1, 5):
        process = server.Process(target=main, args=(command("killed"),))
        process.start()
        while process.is_alive() and newest_step() < step:
            time.sleep(0.001)
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert step <= newest_step() < 16
        assert not list((tmp_path / "killed").glob("*/results.json"))
    assert main(command("killed")) == 0
    assert main(command("unstopped")) == 0
    runs = sorted((tmp_path / "unstopped").iterdir())
    assert len(runs) == 3
    for run in runs:
        for name in ("model/model.safetensors", "metrics.jsonl", "results.json"):
            assert (tmp_path / "killed" / run.name / name).read_bytes() == (run / name).read_bytes()


def test_the_stack_of_runs_that_a_kill_caught_while_they_were_measured_goes_in_the_end(cell, monkeypatch):
    cells = [cell(target) for target in TARGETS]
    finish = runner.finish
    measured = []

    def killed_at_the_second(opened, context):
        if measured:
            raise KeyboardInterrupt
        measured.append(finish(opened, context))
        return measured[0]

    with monkeypatch.context() as patch:
        patch.setattr(runner, "finish", killed_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            trained(cells, 3)
    (stack,) = stacks_beside(cells[0])
    whole = [cell(target, place="whole") for target in TARGETS]
    trained(whole, 3)
    assert all(one.results is not None for one in trained(cells, 3))
    assert not stack.parent.exists()
    assert [model_of(one) for one in cells] == [model_of(one) for one in whole]


def test_half_written_checkpoints_of_a_killed_stack_are_removed(cell):
    cells = [cell(target) for target in TARGETS[:2]]
    stopped(cells, 2, after=2)
    (stack,) = stacks_beside(cells[0])
    half = stack / ".00000003.safetensors.abcdefgh.part"
    half.touch()
    stopped(cells, 2, after=1)
    assert not half.exists()


# --- two processes ----------------------------------------------------------------------------------------


def test_a_grid_holds_all_its_runs_from_the_beginning(cell):
    """Whatever another grid asks for, it is refused before it has changed anything of theirs."""
    mine = [cell(target) for target in TARGETS]
    stopped(mine, 3, after=2)
    refusals = []

    def ask(progress):
        if not refusals:
            for others in (mine, mine[::-1][:1], [cell("cartoon"), mine[1]]):
                with pytest.raises(UserError, match="in use by another process") as refusal:
                    trained(others, 2)
                refusals.append(str(refusal.value))
            assert not (mine[0].out.parent / "erm-cartoon-1").exists()
            assert [checkpoint.steps(RunDirectory(one.out).checkpoints) for one in mine] == [[], [], []]

    trained(mine, 1, show=ask)
    assert [str(mine[at].out) in text for at, text in zip((0, 2, 1), refusals, strict=True)] == [True] * 3


def test_a_run_that_another_process_finished_meanwhile_is_not_trained_again(cell, monkeypatch, widths):
    """It was unfinished when this process looked, and finished when it had the lock."""
    (one,) = cells = [cell("art")]
    locked = RunDirectory.locked

    def locked_later(directory):
        monkeypatch.setattr(RunDirectory, "locked", locked)
        trained(cells, 1)
        return locked(directory)

    monkeypatch.setattr(RunDirectory, "locked", locked_later)
    assert trained(cells, 1)[0].results is not None
    assert run_experiment(one.experiment, one.out, ExecutionContext(CPU)) is not None
    assert widths == [1]


# --- memory -----------------------------------------------------------------------------------------------


def test_a_stack_that_does_not_fit_into_memory_is_divided_until_it_does(cell, monkeypatch):
    tried = []

    def train_in_little_memory(stack, *others):
        tried.append(len(stack))
        if len(stack) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return train_and_measure(stack, *others)

    monkeypatch.setattr(grid, "train_and_measure", train_in_little_memory)
    cells = [cell(target, seed) for target in TARGETS[:2] for seed in (1, 2, 3)][:5]
    said = []
    done = trained(cells, 5, say=said.append)
    assert tried == [5, 3, 2, 1, 2]
    assert "5 runs do not fit into memory together; they are trained 3 at a time." in said
    assert [one.cell for one in done] == cells
    assert all(one.results is not None for one in done)
    assert stacks_beside(cells[0]) == []


def test_a_run_that_does_not_fit_by_itself_is_left_out_and_the_others_go_on(cell, monkeypatch):
    train = grid.train_and_measure

    def train_in_little_memory(stack, *given):
        if any(opened.experiment.target == "art" for opened in stack):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return train(stack, *given)

    monkeypatch.setattr(grid, "train_and_measure", train_in_little_memory)
    said: list[str] = []
    done = trained([cell("art"), cell("photo")], 2, say=said.append)
    assert done[0].results is None
    assert done[0].failure.startswith("out of memory; lower images_per_domain")
    assert any(line.startswith(f"{done[0].cell.out} is left out: out of memory") for line in said)
    assert done[1].results is not None


# --- runs that break down ---------------------------------------------------------------------------------


def test_a_run_that_breaks_down_is_told_of_and_the_others_have_results(cell, widths):
    cells = [cell("art"), cell("photo", **BREAKS_DOWN), cell("sketch")]
    for trained_at_a_time in ([3], [1]):  # in its stack, and when it is called again
        widths.clear()
        said = []
        sound, broken, other = trained(cells, 3, say=said.append)
        assert widths == trained_at_a_time
        assert sound.results is not None
        assert other.results is not None
        assert (broken.results, broken.cell) == (None, cells[1])
        assert "broke down at step 1" in broken.failure
        assert f"{cells[1].out} is left out: {broken.failure}" in said
        assert not (cells[1].out / "results.json").exists()
    assert stacks_beside(cells[0]) == []


def test_a_run_that_broke_down_before_an_interruption_gets_no_results_after_it(cell):
    cells = [cell("art"), cell("photo", **BREAKS_DOWN)]
    stopped(cells, 2, after=3)
    sound, broken = trained(cells, 2)
    assert sound.results is not None
    assert broken.results is None
    assert "broke down at step 1" in broken.failure


def test_where_a_whole_stack_breaks_down_the_next_one_is_trained(cell, widths):
    cells = [cell(target, **BREAKS_DOWN) for target in TARGETS[:2]]
    cells += [cell(target, weight_decay=0.1) for target in TARGETS[:2]]
    said = []
    done = trained(cells, 2, say=said.append)
    assert widths == [2, 2]
    assert [one.results is None for one in done] == [True, True, False, False]
    assert all("broke down at step 1" in one.failure for one in done[:2])
    assert any("none of these 2 runs is left" in line for line in said)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_model_that_cannot_be_measured_costs_the_others_nothing(cell, batch):
    # The only update is the one that goes astray: no loss has seen it.
    cells = [cell("art", steps=1, selection="last", **BREAKS_DOWN), cell("photo", steps=1, selection="last")]
    for _ in range(2):
        astray, sound = trained(cells, batch)
        assert sound.results is not None
        assert astray.results is None
        assert "probabilities are not finite" in astray.failure
