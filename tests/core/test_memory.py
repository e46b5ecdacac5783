from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from metavib.core import memory
from metavib.core.errors import UserError


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


def test_a_server_gives_large_blocks_back_and_what_was_kept_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int, int]] = []
    glibc = SimpleNamespace(
        mallopt=lambda name, value: told.append(("mallopt", name, value)),
        malloc_trim=lambda kept: told.append(("malloc_trim", 0, kept)),
    )
    monkeypatch.setattr(memory.sys, "platform", "linux")
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: glibc)
    memory.keep_freed_memory()
    kept = {name: value for _, name, value in told}
    told.clear()
    memory.give_large_blocks_back()
    *options, last = told
    values = {name: value for _, name, value in options}
    # malloc.h: M_MMAP_THRESHOLD -3, M_MMAP_MAX -4; values must fit a C int. What else was told stays.
    assert sorted(values) == [-4, -3]
    assert values[-4] > kept[-4] == 0
    assert all(0 < value < 2**31 for value in values.values())
    assert last == ("malloc_trim", 0, 0)  # after it was told, or blocks would be cut from what was kept


def test_elsewhere_large_blocks_are_left_to_the_system(
    calls: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    memory.give_large_blocks_back()
    assert calls == []


@pytest.mark.parametrize("tell", [memory.keep_freed_memory, memory.give_large_blocks_back])
def test_a_c_library_without_mallopt_is_left_alone(
    tell: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    monkeypatch.setattr(memory.sys, "platform", "linux")
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: opened.append(name) or SimpleNamespace())
    tell()
    assert set(opened) == {None}


# --- limits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2 << 30),
        ("500MB", 500 * 10**6),
        ("1.5G", 1_500_000_000),
        (" 64 mib ", 64 << 20),
        ("4096", 4096),
        ("1t", 10**12),
        (".5KiB", 512),
    ],
)
def test_amounts_of_memory_are_written_as_people_write_them(text: str, size: int) -> None:
    assert memory.bytes_of(text) == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1GB", "nan", "inf", "0", "1e9", "2 GB 3", "9" * 400, "٢GB", "1e999T"]
)
def test_what_is_no_amount_is_named(text: str) -> None:
    with pytest.raises(UserError, match="not an amount of memory"):
        memory.bytes_of(text)


def test_a_limit_holds_in_its_block_and_what_was_there_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(memory.VARIABLE, raising=False)
    assert memory.asked_for() is None
    with memory.limited_to("3GB"):
        assert memory.asked_for() == 3 * 10**9
        with memory.limited_to("1GB"), memory.limited_to(None):
            assert memory.asked_for() == 10**9
        assert memory.asked_for() == 3 * 10**9
    assert memory.asked_for() is None


def test_a_limit_of_the_environment_that_is_none_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(memory.VARIABLE, "much")
    with pytest.raises(UserError, match="'much'"), memory.limited_to(None):
        pass


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux says how much is taken")
def test_what_is_free_is_the_limit_less_what_is_taken() -> None:
    taken = memory._taken()["resident"]
    with memory.limited_to(str(taken + (512 << 20))):
        assert 0 < memory.free_memory_of_host() <= 600 << 20
    with memory.limited_to("1MiB"):  # less than Python itself takes
        assert memory.free_memory_of_host() == 0


def test_without_any_word_of_the_system_a_modest_machine_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(memory.VARIABLE, raising=False)
    for name in ("_available", "resource"):
        monkeypatch.setattr(memory, name, (lambda: None) if name == "_available" else None)
    monkeypatch.setattr(memory, "free_in_groups", lambda root: None)
    assert memory.free_memory_of_host() == 4 << 30


def group(folder: Path, **files: object) -> None:
    """A control group with these files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """A system whose control groups are what a test writes."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    return tmp_path


def test_the_narrowest_control_group_counts_and_its_page_cache_is_free(system: Path) -> None:
    (system / "proc/self/cgroup").write_text("0::/outer/inner\n")
    mounted = system / "sys/fs/cgroup"
    stat = "anon 5\ninactive_file 30\nactive_file 20\nfile 50"
    group(mounted / "outer", memory__max=1000, memory__current=700, memory__stat=stat)
    group(mounted / "outer/inner", memory__max="max", memory__current=100, memory__stat=stat)
    assert memory.free_in_groups(system) == 1000 - 700 + 50
    group(mounted / "outer/inner", memory__max=120)
    assert memory.free_in_groups(system) == 120 - 100 + 50


def test_control_groups_of_the_first_version(system: Path) -> None:
    (system / "proc/self/cgroup").write_text("5:cpu,cpuacct:/x\n4:memory:/job\n0::/\n")
    folder = system / "sys/fs/cgroup/memory/job"
    stat = "inactive_file 1\ntotal_inactive_file 40\ntotal_active_file 2"
    group(folder, memory__limit_in_bytes=900, memory__usage_in_bytes=500, memory__stat=stat)
    group(
        folder.parent, memory__limit_in_bytes=9223372036854771712, memory__usage_in_bytes=1, memory__stat=stat
    )
    assert memory.free_in_groups(system) == 900 - 500 + 42


def test_in_a_container_the_mount_is_the_group(system: Path) -> None:
    (system / "proc/self/cgroup").write_text("0::/a/path/of/the/host\n")
    group(system / "sys/fs/cgroup", memory__max=64, memory__current=14, memory__stat="")
    assert memory.free_in_groups(system) == 50


@pytest.mark.parametrize("lines", [None, "", "0::/", "nonsense", "4:memory:/gone"])
def test_without_limits_control_groups_say_nothing(system: Path, lines: str | None) -> None:
    if lines is not None:
        (system / "proc/self/cgroup").write_text(lines)
    assert memory.free_in_groups(system) is None
