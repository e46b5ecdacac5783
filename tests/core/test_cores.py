"""How many threads torch gets: what the user says, or as many as there are idle cores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from metavib.core import cores
from metavib.core.errors import UserError


@pytest.fixture(autouse=True)
def _threads_as_they_were() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 8 cores; its load and control groups are what a test writes."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.setattr(cores, "_SECONDS_BETWEEN", 0.0)
    return tmp_path


@pytest.mark.parametrize(
    ("load", "running", "idle"),
    [
        ("0.00", 1, 8),  # only this process
        ("3.10", 4, 5),
        ("2.60", 9, 5),
        ("7.90", 9, 1),
        ("40.0", 60, 1),  # one at least
        ("8.00", 1, 8),  # what ended a moment ago
        ("0.10", 9, 8),  # what began a moment ago
    ],
)
def test_cores_that_others_keep_busy_are_left_to_them(
    load: str, running: int, idle: int, system: Path
) -> None:
    (system / "proc/loadavg").write_text(f"{load} 1.00 1.00 {running}/300 4242\n")
    assert cores.idle(system) == idle


@pytest.mark.parametrize("text", [None, "", "nonsense", "1.0"])
def test_without_a_word_of_the_system_all_cores_are_idle(text: str | None, system: Path) -> None:
    if text is not None:
        (system / "proc/loadavg").write_text(text)
    assert cores.idle(system) == 8


@pytest.mark.parametrize(
    ("quota", "allowed"), [("200000 100000", 2), ("150000 100000", 2), ("max 100000", 8)]
)
def test_a_control_group_limits_the_cores(quota: str, allowed: int, system: Path) -> None:
    (system / "proc/self/cgroup").write_text("0::/job\n")
    group = system / "sys/fs/cgroup/job"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text(f"{quota}\n")
    assert cores.allowed(system) == allowed


def test_control_groups_of_the_first_version_limit_them_too(system: Path) -> None:
    (system / "proc/self/cgroup").write_text("4:memory:/x\n5:cpu,cpuacct:/job\n0::/\n")
    group = system / "sys/fs/cgroup/cpu/job"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text("50000\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    assert cores.allowed(system) == 1
    (group / "cpu.cfs_quota_us").write_text("-1\n")
    assert cores.allowed(system) == 8


def test_in_its_block_torch_has_the_threads_and_then_those_of_before() -> None:
    torch.set_num_threads(2)
    with cores.used_by_torch(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with cores.used_by_torch(None):
        assert torch.get_num_threads() == 2


def test_the_usual_number_is_that_of_idle_cores_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.set_num_threads(4)
    monkeypatch.setattr(cores, "idle", lambda: 3)
    monkeypatch.setenv(cores.VARIABLE, "4")
    assert cores.usual() is None
    monkeypatch.delenv(cores.VARIABLE)
    assert cores.usual() == 3
    monkeypatch.setattr(cores, "idle", lambda: 16)
    assert cores.usual() == 4  # no more than torch would have


@pytest.mark.parametrize("threads", [0, -1, 9, 10**9])
def test_threads_that_there_are_no_cores_for_are_refused(threads: int, system: Path) -> None:
    with pytest.raises(UserError, match=rf"--threads {threads} must be from 1 to 8"):
        cores.check(threads)
    cores.check(8)
    cores.check(None)
