"""Files of a packet on another machine: all of them come back, whole and in the right order."""

import json
from pathlib import Path

import pytest
import torch

from metavib.core import atomic, untrusted
from metavib.core.errors import UserError
from metavib.runs.one_run import ExecutionContext, run_experiment
from metavib.runs.sweep.workspace import Workspace, files_of, placed


@pytest.fixture
def workspace(tmp_path):
    return Workspace(tmp_path / "there", {"cells/a/experiment.json": b"{}"})


def written(workspace, name, content=b"x"):
    path = workspace.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_bytes(path, content)


def test_what_was_brought_is_not_sent_back_and_what_is_new_is_sent_once(workspace):
    assert (workspace.folder / "cells/a/experiment.json").read_bytes() == b"{}"
    assert workspace.changes() == {}
    written(workspace, "cells/a/results.json", b"1")
    assert workspace.changes() == {"cells/a/results.json": b"1"}
    assert workspace.changes() == {}
    written(workspace, "cells/a/results.json", b"2")  # of the same size
    assert workspace.changes() == {"cells/a/results.json": b"2"}


def test_locks_and_half_written_files_stay_and_stacks_do_not(workspace):
    for name in ("cells/a/.lock", "cells/a/.results.json.x.part", "cells/.stacks/s/members.json"):
        written(workspace, name)
    assert list(workspace.changes()) == ["cells/.stacks/s/members.json"]


def test_what_is_deleted_there_is_deleted_here(workspace, tmp_path):
    written(workspace, "cells/a/checkpoints/00000001.json")
    written(workspace, "cells/a/checkpoints/00000001.safetensors")
    placed(tmp_path / "here", workspace.changes())
    assert (tmp_path / "here/cells/a/checkpoints/00000001.json").exists()
    (workspace.folder / "cells/a/checkpoints/00000001.json").unlink()
    changes = workspace.changes()
    assert changes == {"cells/a/checkpoints/00000001.json": None}
    placed(tmp_path / "here", changes)
    assert [path.name for path in (tmp_path / "here/cells/a/checkpoints").iterdir()] == [
        "00000001.safetensors"
    ]


def test_a_checkpoint_whose_tensors_were_deleted_meanwhile_is_not_sent(workspace):
    written(workspace, "cells/a/checkpoints/00000001.json")
    assert workspace.changes() == {}
    written(workspace, "cells/a/checkpoints/00000001.safetensors")
    assert len(workspace.changes()) == 2


def test_what_makes_a_run_is_written_first_tensors_before_their_json_and_results_last(tmp_path, monkeypatch):
    order = []
    monkeypatch.setattr(atomic, "write_bytes", lambda path, content: order.append(path.name))
    names = ("results.json", "checkpoints/00000002.json", "metrics.jsonl", "checkpoints/00000002.safetensors")
    placed(tmp_path, {f"cells/a/{name}": b"x" for name in (*names, "experiment.json")})
    assert order[0] == "experiment.json"
    assert set(order[1:3]) == {"00000002.safetensors", "metrics.jsonl"}
    assert order[3:] == ["00000002.json", "results.json"]


def test_a_log_reaches_as_far_as_the_checkpoints_that_come_with_it(workspace, monkeypatch):
    names = ["cells/a/metrics.jsonl", "cells/a/checkpoints/00000002.json", "cells/z/metrics.jsonl"]
    names.append("cells/a/checkpoints/00000002.safetensors")
    for name in names:
        written(workspace, name)
    read, order = untrusted.read, []
    monkeypatch.setattr(
        untrusted, "read", lambda path, *limits: order.append(path.suffix) or read(path, *limits)
    )
    assert set(workspace.changes()) == set(names)
    assert order[2:] == [".jsonl", ".jsonl"]


def test_a_driver_killed_while_files_come_leaves_a_run_that_can_go_on(cell, tmp_path, monkeypatch):
    one = cell("art")
    finished = run_experiment(one.experiment, one.out, ExecutionContext(torch.device("cpu")))
    files = {
        path.relative_to(one.out.parent).as_posix(): path.read_bytes()
        for path in one.out.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }
    write = atomic.write_bytes
    for count in range(len(files)):
        here = tmp_path / f"after-{count}"
        left = iter(range(count))

        def killed(path, content, left=left):
            if next(left, None) is None:
                raise KeyboardInterrupt
            write(path, content)

        with monkeypatch.context() as patch:
            patch.setattr(atomic, "write_bytes", killed)
            with pytest.raises(KeyboardInterrupt):
                placed(here, files)
        again = run_experiment(one.experiment, here / one.out.name, ExecutionContext(torch.device("cpu")))
        assert again == finished
        assert (here / one.out.name / "metrics.jsonl").read_bytes() == (
            one.out / "metrics.jsonl"
        ).read_bytes()


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "cells/../../x"])
def test_nothing_is_written_outside_of_the_folder(tmp_path, name):
    with pytest.raises(RuntimeError, match="not below the sweep's folder"):
        placed(tmp_path / "here", {"cells/good": b"x", name: b"x"})
    assert not (tmp_path / "here").exists()


def test_nothing_is_written_where_a_link_in_the_folder_leads(tmp_path):
    (tmp_path / "here" / "cells").mkdir(parents=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "here" / "cells" / ".stacks").symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match="is a link that leads out of"):
        placed(tmp_path / "here", {"cells/.stacks/one/members.json": b"[]"})
    assert not list((tmp_path / "mine").iterdir())


def test_a_worker_gets_all_that_its_cells_left_and_their_stack(cell, tmp_path):
    own, other = cell("art"), cell("photo")
    identities = {one: one.experiment.identity() for one in (own, other)}
    files = {
        own.out / "experiment.json",
        own.out / "checkpoints" / "00000001.json",
        own.out / "model" / "model.safetensors",
        own.out / ".lock",
        other.out / "experiment.json",
        own.out.parent / ".stacks" / "mine" / "00000002.json",
    }
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    for stack, members in (("mine", [own, other]), ("not", [other])):
        path = own.out.parent / ".stacks" / stack / "members.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([identities[one] for one in members]))
    found = files_of(tmp_path, [own])
    assert {Path(name).relative_to("runs").as_posix() for name in found} == {
        f"{own.out.name}/experiment.json",
        f"{own.out.name}/checkpoints/00000001.json",
        ".stacks/mine/00000002.json",
        ".stacks/mine/members.json",
    }
