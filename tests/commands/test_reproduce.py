from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from metavib.commands import reproduce
from metavib.paper import Row, Table

SMALL = Table(
    name="small",
    label="tab:small",
    caption="a small table",
    dataset="rotated-digits",
    targets=("0", "75"),
    rows=(
        Row("ERM", values=(80.0, 90.0), mean=85.0, algorithm="erm"),
        Row("MetaVIB", values=(90.0, 92.0), mean=91.0, algorithm="metavib"),
    ),
)
QUICK = ["small", "--preset", "demo", "--seeds", "1", "--steps", "4", "--device", "cpu"]
for _setting in ("images_per_domain=10", "validations=2", "repeats=2"):
    QUICK += ["--set", _setting]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "table_named", lambda name: SMALL)


@pytest.fixture
def call(metavib: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    return lambda *more: metavib("reproduce", *QUICK, "--out", tmp_path / "out", *more)


def runs_in(folder: Path) -> dict[str, int]:
    """The finished runs, and when their results were written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("*/results.json")}


def test_a_table_is_measured_and_written_and_a_second_call_trains_nothing(
    call: Callable[..., Any], tmp_path: Path
) -> None:
    status, out, err = call("--json")
    assert status == 0
    record = json.loads(out)
    assert [row["title"] for row in record["rows"]] == ["ERM", "MetaVIB"]
    assert "MetaVIB, paper" in err
    assert "4 runs, 0 of them finished already. About " in err
    written = {path.name for path in (tmp_path / "out").glob("table.*")}
    assert written == {"table.md", "table.tex", "table.csv", "table.json"}
    assert json.loads((tmp_path / "out" / "table.json").read_text()) == record
    first = runs_in(tmp_path / "out")
    assert len(first) == 4
    again = call("--json")
    assert json.loads(again.out) == record
    assert "4 runs, 4 of them finished already." in again.err
    assert runs_in(tmp_path / "out") == first


def test_a_plan_trains_and_writes_nothing(call: Callable[..., Any], tmp_path: Path) -> None:
    status, out, err = call("--plan", "--json")
    assert status == 0
    plan = json.loads(out)
    assert (plan["runs"], plan["finished"]) == (4, 0)
    assert plan["seconds"] > 0
    assert plan["gigabytes"] > 0
    assert "GB of memory, by a short probe" in err
    assert not (tmp_path / "out").exists()


def test_stopped_and_called_again_it_goes_on_and_trains_nothing_twice(
    call: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uninterrupted = tmp_path / "whole"
    assert call("--out", uninterrupted).status == 0

    @contextlib.contextmanager
    def stop_after_six_steps() -> Iterator[Callable[[], bool]]:
        steps = iter(range(5))
        yield lambda: next(steps, None) is None

    with monkeypatch.context() as patch:
        patch.setattr(reproduce, "stop_requested", stop_after_six_steps)
        stopped = call()
    assert stopped.status == 130
    command = stopped.err.partition("the runs are kept. To go on: ")[2].split()
    assert command[:3] == ["metavib", "reproduce", "small"]
    assert [*QUICK[3:7], "--device", "cpu"] == [
        word
        for flag in ("--seeds", "--steps", "--device")
        for word in (flag, command[command.index(flag) + 1])
    ]
    first = runs_in(tmp_path / "out")
    assert len(first) == 1
    assert call().status == 0
    after = runs_in(tmp_path / "out")
    assert {name: after[name] for name in first} == first
    tables = [(folder / "table.csv").read_text() for folder in (tmp_path / "out", uninterrupted)]
    assert tables[0] == tables[1]


def test_rows_and_columns_can_be_chosen(call: Callable[..., Any], tmp_path: Path) -> None:
    assert call("--algorithms", "erm", "--targets", "75").status == 0
    lines = (tmp_path / "out" / "table.csv").read_text().splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("ERM,75,0,")


def test_a_cell_that_fails_is_told_of_and_the_others_go_on(call: Callable[..., Any], tmp_path: Path) -> None:
    poisoned = Table(**(vars(SMALL) | {"rows": (SMALL.rows[0], _breaking(SMALL.rows[1]))}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduce, "table_named", lambda name: poisoned)
        status, out, err = call("--targets", "0")
    assert (status, out) == (1, "")
    assert "metavib: failed: MetaVIB, 0, seed 0: training broke down" in err
    assert len(runs_in(tmp_path / "out")) == 1


def _breaking(row: Row) -> Row:
    return Row(**(vars(row) | {"settings": {"beta": 1e38, "learning_rate": 1e30, "clip_norm": 0.0}}))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--targets", "7"), "unknown target '7'"),
        (("--algorithms", "metavip"), "metavib"),
        (("--seeds", "none"), "--seeds none will not do"),
        (("--select", "best"), "selection"),
        (("--set", "betta=1"), "unknown setting 'betta'"),
    ],
)
def test_bad_input_gets_one_line(
    refused: Callable[..., str], tmp_path: Path, more: tuple[str, ...], words: str
) -> None:
    assert words in refused("reproduce", *QUICK, "--out", tmp_path / "out", *more)
    assert not (tmp_path / "out").exists()


def test_an_unknown_table_is_answered_with_those_there_are(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from metavib.paper import table_named

    monkeypatch.setattr(reproduce, "table_named", table_named)
    assert "rotated-mnist" in refused("reproduce", "rotated-minst")


def test_a_run_of_another_version_is_refused(
    call: Callable[..., Any], refused: Callable[..., str], tmp_path: Path
) -> None:
    assert call("--algorithms", "erm", "--targets", "75").status == 0
    (path,) = (tmp_path / "out").glob("*/experiment.json")
    path.write_text(path.read_text().replace('"format": 1', '"format": 99'))
    message = refused(
        "reproduce", *QUICK, "--out", tmp_path / "out", "--algorithms", "erm", "--targets", "75"
    )
    assert "was made by another version of metavib" in message
