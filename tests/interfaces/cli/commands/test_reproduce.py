from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from metavib.interfaces.cli.training import choosing, paper_table, stopping
from metavib.reports.paper.reproduction import Choices
from metavib.reports.paper.tables import PaperRow, PaperTable

pytestmark = pytest.mark.whole

SMALL = PaperTable(
    name="small",
    label="tab:small",
    caption="a small table",
    dataset="rotated-digits",
    targets=("0", "75"),
    rows=(
        PaperRow("ERM", values=(80.0, 90.0), mean=85.0, algorithm="erm"),
        PaperRow("MetaVIB", values=(90.0, 92.0), mean=91.0, algorithm="metavib"),
    ),
)
QUICK = ["small", "--preset", "demo", "--seeds", "1", "--steps", "4", "--device", "cpu"]
for _setting in ("images_per_domain=10", "validations=1", "repeats=2"):
    QUICK += ["--set", _setting]
# Where MetaVIB is among the rows.
FEW_DRAWS = ["--set", "latent_draws=2", "--set", "classifier_draws=2", "--set", "latent_width=16"]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper_table, "table_named", lambda name: SMALL)


@pytest.fixture
def call(metavib: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    return lambda *more: metavib("reproduce", *QUICK, "--out", tmp_path / "out", *more)


def runs_in(folder: Path) -> dict[str, int]:
    """The finished runs, and when their results were written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("*/results.json")}


def test_a_table_is_measured_and_written_and_a_second_call_trains_nothing(
    call: Callable[..., Any], tmp_path: Path
) -> None:
    status, out, err = call("--json", "--targets", "75", *FEW_DRAWS)
    assert status == 0
    record = json.loads(out)
    titles = ["ERM", "MetaVIB", "ERM + SWAD", "MetaVIB + SWAD"]
    assert [row["title"] for row in record["rows"]] == titles
    assert "MetaVIB, paper" in err
    assert "4 runs, 0 of them finished already. About " in err
    written = {path.name for path in (tmp_path / "out").glob("table.*")}
    assert written == {"table.md", "table.tex", "table.csv", "table.json"}
    assert json.loads((tmp_path / "out" / "table.json").read_text()) == record
    first = runs_in(tmp_path / "out")
    assert len(first) == 4
    again = call("--json", "--targets", "75", *FEW_DRAWS)
    assert json.loads(again.out) == record
    assert "4 runs, 4 of them finished already." in again.err
    assert runs_in(tmp_path / "out") == first


def test_a_plan_trains_and_writes_nothing(call: Callable[..., Any], tmp_path: Path) -> None:
    status, out, err = call("--plan", "--json", *FEW_DRAWS)
    assert status == 0
    plan = json.loads(out)
    assert (plan["runs"], plan["finished"]) == (8, 0)
    assert plan["seconds"] > 0
    assert plan["gigabytes"] > 0
    assert "GB of memory, by a short probe" in err
    assert not (tmp_path / "out").exists()


def test_a_probe_can_be_stopped_too(
    call: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def stop_in_the_second_kind() -> Iterator[Callable[[], bool]]:
        steps = iter(range(10))  # of one kind there are twice four
        yield lambda: next(steps, None) is None

    monkeypatch.setattr(stopping, "stop_requested", stop_in_the_second_kind)
    status, _, err = call(*FEW_DRAWS)
    assert status == 130
    assert "metavib: stopped before any run began" in err
    assert not (tmp_path / "out").exists()


def test_stopped_and_called_again_it_goes_on_and_trains_nothing_twice(
    call: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uninterrupted = tmp_path / "whole"
    flags = ["--algorithms", "erm", "metavib", *FEW_DRAWS]
    assert call(*flags, "--out", uninterrupted).status == 0

    @contextlib.contextmanager
    def stop_in_the_second_run() -> Iterator[Callable[[], bool]]:
        yield lambda: len(runs_in(tmp_path / "out")) == 1

    with monkeypatch.context() as patch:
        patch.setattr(stopping, "stop_requested", stop_in_the_second_run)
        stopped = call(*flags)
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
    assert call(*flags).status == 0
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
    poisoned = PaperTable(**(vars(SMALL) | {"rows": (SMALL.rows[0], _breaking(SMALL.rows[1]))}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper_table, "table_named", lambda name: poisoned)
        status, out, err = call("--targets", "0")
    assert status == 1
    assert "MetaVIB" in out
    assert "metavib: failed: MetaVIB, 0, seed 0: training broke down" in err
    assert len(runs_in(tmp_path / "out")) == 1


# --- how the model and the settings are chosen ------------------------------------------------------------

LEAVE_ONE_OUT = ("--select", "leave-one-domain-out")
ONE_CELL = ("--algorithms", "erm", "--targets", "75", "--steps", "2")


def test_the_setting_that_does_best_on_the_source_domains_is_measured_and_a_second_call_trains_nothing(
    call: Callable[..., Any], tmp_path: Path
) -> None:
    flags = (*LEAVE_ONE_OUT, *ONE_CELL, "--set", "learning_rate=1e-9,1e-2", "--json")
    status, out, err = call(*flags)
    assert status == 0, err
    assert "11 runs, 0 of them finished already." in err  # five folds for each of two rates, and the best
    found: dict[float, list[float]] = {}
    for path in (tmp_path / "out" / "folds").glob("*/results.json"):
        fold = json.loads((path.parent / "experiment.json").read_text())["experiment"]
        assert fold["without"] == ["75"]
        accuracies = found.setdefault(fold["training"]["learning_rate"], [])
        accuracies.append(json.loads(path.read_text())["unseen"]["accuracy"]["mean"])
    assert {rate: len(accuracies) for rate, accuracies in found.items()} == {1e-9: 5, 1e-2: 5}
    best = max(found, key=lambda rate: statistics.mean(found[rate]))
    assert best == 1e-2  # not the first, which hardly learns
    (run,) = json.loads(out)["rows"][0]["runs"]
    recorded = json.loads((tmp_path / "out" / run["experiment"] / "experiment.json").read_text())
    assert recorded["experiment"]["training"]["learning_rate"] == best
    choice = json.loads((tmp_path / "out" / run["experiment"] / "choice.json").read_text())
    assert (choice["chosen"], len(choice["candidates"])) == (run["experiment"], 2)
    assert "selected by source-validation, settings by leave-one-domain-out, " in json.loads(out)["caption"]
    assert f"learning_rate=0.01: {100 * statistics.mean(found[best]):.2f} %, chosen" in err
    first = runs_in(tmp_path / "out") | runs_in(tmp_path / "out" / "folds")
    assert len(first) == 11

    again = call(*flags)
    assert json.loads(again.out) == json.loads(out)
    assert "11 runs, 11 of them finished already." in again.err
    assert runs_in(tmp_path / "out") | runs_in(tmp_path / "out" / "folds") == first


def test_a_plan_counts_the_folds_and_trains_none(call: Callable[..., Any], tmp_path: Path) -> None:
    flags = (*LEAVE_ONE_OUT, *ONE_CELL, "--set", "learning_rate=1e-3,1e-2,1e-1", "--plan", "--json")
    status, out, _ = call(*flags)
    assert status == 0
    assert json.loads(out)["runs"] == 3 * 5 + 1
    assert not (tmp_path / "out").exists()


def test_a_cell_for_which_nothing_could_be_chosen_has_failed(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(choosing, "choose", lambda questions, context, batch: ["why not"])
    status, _, err = call(*LEAVE_ONE_OUT, *ONE_CELL, "--set", "learning_rate=1e-3,1e-2")
    assert status == 1
    assert err.splitlines()[-1] == "metavib: failed: ERM, 75, seed 0: why not"
    assert runs_in(tmp_path / "out") == {}


def test_candidates_are_all_combinations_of_values() -> None:
    rows, seeds = SMALL.rows, (0,)
    assignments = {"steps": 5, "beta": ".1, .2", "roles": "one,every"}
    choices = Choices(rows, SMALL.targets, seeds, "demo", None, None, None, assignments)
    assert [own.assignments for own in paper_table.candidates(choices)] == [
        {"steps": "5", "beta": beta, "roles": roles} for beta in (".1", ".2") for roles in ("one", "every")
    ]


def test_the_oracle_peeks_and_the_table_says_so_and_has_no_rows_that_it_cannot_select(
    call: Callable[..., Any], tmp_path: Path
) -> None:
    status, _, err = call("--select", "oracle", "--targets", "0", "--steps", "1", *FEW_DRAWS)
    assert status == 0, err
    text = (tmp_path / "out" / "table.md").read_text()
    assert "selected by oracle (which peeks at the unseen domain), " in text
    rows = [row["title"] for row in json.loads((tmp_path / "out" / "table.json").read_text())["rows"]]
    assert rows == ["ERM", "MetaVIB"]


def _breaking(row: PaperRow) -> PaperRow:
    return PaperRow(**(vars(row) | {"settings": {"beta": 1e38, "learning_rate": 1e30, "clip_norm": 0.0}}))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--targets", "7"), "unknown target '7'"),
        (("--algorithms", "metavip"), "metavib"),
        (("--seeds", "none"), "--seeds must be"),
        (("--select", "best"), "highest-validation, last, leave-one-domain-out, oracle, source-validation"),
        (("--select", "leave-one-out"), "did you mean 'leave-one-domain-out'"),
        (("--average", "swat"), "unknown average 'swat'; did you mean 'swad'"),
        (("--algorithms", "erm+swat"), "did you mean 'swad'"),
        (("--algorithms", "erm+swad", "--select", "oracle"), "it cannot be selected by the oracle"),
        (("--set", "beta=.1,.2"), "choose among them with --select leave-one-domain-out"),
        ((*LEAVE_ONE_OUT,), "there is nothing to choose for leave-one-domain-out"),
        ((*LEAVE_ONE_OUT, "--set", "beta=.1"), "as --set beta=.001,.01"),
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
    from metavib.reports.paper.tables import table_named

    monkeypatch.setattr(paper_table, "table_named", table_named)
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
    assert "was written by a newer version of metavib" in message
