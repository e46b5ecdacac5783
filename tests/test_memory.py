from __future__ import annotations

from types import SimpleNamespace

import pytest

from metavib import memory


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What glibc is told; it must not be told anything in a process of tests."""
    told: list[tuple[int, int]] = []
    glibc = SimpleNamespace(mallopt=lambda name, value: told.append((name, value)))
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: glibc)
    return told


def test_on_linux_freed_memory_is_kept(calls: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.sys, "platform", "linux")
    memory.keep_freed_memory()
    # malloc.h: M_TRIM_THRESHOLD -1, M_TOP_PAD -2, M_MMAP_MAX -4; values must fit a C int.
    assert sorted(name for name, _ in calls) == [-4, -2, -1]
    assert dict(calls)[-4] == 0
    assert all(0 <= value < 2**31 for _, value in calls)


def test_elsewhere_nothing_happens(calls: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    memory.keep_freed_memory()
    assert calls == []


def test_a_c_library_without_mallopt_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    monkeypatch.setattr(memory.sys, "platform", "linux")
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: opened.append(name) or SimpleNamespace())
    memory.keep_freed_memory()
    assert opened == [None]
