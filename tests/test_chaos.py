"""The short form of `make chaos`: real kills, full disks, clocks that jump and second processes, a few of each."""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import chaos
import pytest
from faults import clocks, disks, kills, lost_workers, two_processes
from faults.workshop import Command, Workshop, damage_in, left_in, open_workshop

import metavib

pytestmark = pytest.mark.chaos

# Workers take seconds to start: the short form of these stands elsewhere.
SHORTER = {
    "sweeping": "tests/interfaces/cli/commands/test_sweep.py",
    "sweeping, on Ray": "tests/runs/sweep/test_ray_engine.py",
}
SOURCES = sorted(Path(metavib.__file__).parent.rglob("*.py"))


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    made = open_workshop(tmp_path_factory.mktemp("workshop"))
    kills.prepare(made)
    return made


# --- SIGKILL ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", kills.KINDS)
def test_kills_at_random_moments_leave_no_trace(
    name: str, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_figure(workshop: Workshop, folder: Path) -> list[str]:
        return [*kills.report_command(workshop, folder), "--figure", "confusion"]  # the page takes seconds

    if name in SHORTER:
        pytest.skip(f"{SHORTER[name]} kills the driver of a sweep, once")
    monkeypatch.setitem(kills.KINDS, "reporting", kills.Kind(one_figure))
    monkeypatch.setattr(kills, "COLD_SECONDS", 0.5)
    tally = kills.kill_at_random(workshop, name, kills=3, seed=0)
    assert tally.complaints == ()
    assert tally.sound
    assert (tally.kills, tally.kills_during_start) == (3, 1)
    assert tally.finished >= 1


def test_every_kind_has_its_share_of_the_kills() -> None:
    assert all(kind.possible for kind in kills.KINDS.values() if not kind.needs)
    assert not kills.Kind(kills.report_command, needs="a_module_that_nobody_has").possible
    assert set(chaos.SHARES) == set(kills.KINDS)
    assert sum(chaos.SHARES.values()) == 100


# --- lost workers -----------------------------------------------------------------------------------------


@pytest.mark.timeout(1300)
def test_a_sweep_whose_worker_is_killed_ends_as_one_that_nobody_disturbs(workshop: Workshop) -> None:
    losses = lost_workers.lose_workers(workshop, "local", kills=1, seed=0)
    assert losses.survived, losses
    assert (losses.kills, losses.retried >= 1, losses.identical) == (1, True, True)


@pytest.mark.timeout(1300)
def test_a_sweep_whose_node_is_killed_ends_as_one_that_nobody_disturbs(workshop: Workshop) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed")
    losses = lost_workers.lose_node(workshop, seed=0)
    assert losses.survived, losses
    assert losses.retried >= 1
    assert losses.identical


def test_a_sweep_that_ends_otherwise_is_noticed(workshop: Workshop, tmp_path: Path) -> None:
    (tmp_path / "ranking.json").write_text("{}")
    done = Command(["describe"], tmp_path / "said").start()
    losses = lost_workers.Losses()
    lost_workers._ended(workshop, done, tmp_path, losses)
    assert not losses.identical
    assert not losses.survived
    refused = Command(["sweep", "nowhere.yaml"], tmp_path / "said").start()
    losses = lost_workers.Losses()
    lost_workers._ended(workshop, refused, tmp_path, losses)
    assert not losses.survived
    assert "nowhere.yaml" in losses.complaint


def damaged(folder: Path, change: Callable[[Path], None], name: str) -> list[str]:
    """What is found in the finished run, with one file changed; the file is put back."""
    path = folder / name
    former = path.read_bytes()
    change(path)
    try:
        return damage_in(folder, {"results.json": "0" * 64} if name == "results.json" else {})
    finally:
        path.write_bytes(former)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("experiment.json", lambda path: path.write_bytes(path.read_bytes()[:-9])),
        ("results.json", lambda path: None),  # another hash is expected
        ("metrics.jsonl", lambda path: path.write_text("{\n" + path.read_text())),
        ("checkpoints/00000030.json", lambda path: path.write_text(path.read_text().replace("30", "31"))),
        ("checkpoints/00000030.safetensors", lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x")),
        ("checkpoints/00000030.safetensors", lambda path: path.unlink()),
    ],
)
def test_damage_would_be_noticed(name: str, change: Callable[[Path], None], workshop: Workshop) -> None:
    assert damage_in(workshop.finished, left_in(workshop.finished)) == []
    (found,) = damaged(workshop.finished, change, name)
    assert name.rpartition(".")[0] in found


def test_what_is_half_written_under_another_name_is_no_damage(workshop: Workshop, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1}) + '\n{"step"')
    (tmp_path / ".results.json.abcdefgh.part").write_text("{")
    (tmp_path / "entry.7.partial").mkdir()
    (tmp_path / "entry.7.partial" / "index.json").write_text("{")
    assert damage_in(tmp_path, {}) == []


# --- disks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "write"),
    [*(("full disk", write) for write in disks.WRITES)]
    + [("read-only", write) for write in ("cache", "metrics", "model", "results")],
)
def test_a_write_that_fails_is_one_clear_error_and_costs_nothing(
    fault: str, write: str, workshop: Workshop
) -> None:
    outcome = disks.try_one(workshop, write, fault)
    if outcome.skipped:
        pytest.skip(f"{fault}: {outcome.skipped}")
    assert outcome.survived, outcome


# --- clocks -----------------------------------------------------------------------------------------------


def test_a_clock_that_jumps_by_years_changes_nothing(workshop: Workshop) -> None:
    found = clocks.try_one(workshop, "a run", workshop.training)
    if "skipped" in found:
        pytest.skip(found["skipped"])
    assert found["survived"], found


def asks_for_the_time_of_day(source: str) -> list[str]:
    calls = [ast.unparse(node.func) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    of_day = {"time.time", "time.time_ns", "time.localtime", "time.gmtime", "time.strftime", "time.ctime"}
    return [call for call in calls if call in of_day or call.endswith((".now", ".today", ".utcnow"))]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_duration_is_taken_from_the_time_of_day(path: Path) -> None:
    assert asks_for_the_time_of_day(path.read_text()) == []


def test_the_guard_sees_who_asks_for_the_time_of_day() -> None:
    assert asks_for_the_time_of_day("import time\nlate = time.time() > 3") == ["time.time"]
    assert asks_for_the_time_of_day("datetime.datetime.now()") == ["datetime.datetime.now"]
    assert asks_for_the_time_of_day("time.monotonic() - time.perf_counter()") == []


# --- two processes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["the same run", "a grid that shares a run"])
def test_the_second_process_is_refused_until_the_first_is_killed(name: str, workshop: Workshop) -> None:
    found = two_processes.try_one(workshop, name)
    assert found["survived"], found


def test_who_waits_for_images_that_are_decoded_goes_on_when_the_decoder_is_killed(workshop: Workshop) -> None:
    found = two_processes.try_cache(workshop)
    assert found["survived"], found
