from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_up_results import results_like
from scipy import stats

from metavib.algorithms import ALGORITHMS, title_of
from metavib.core.errors import UserError
from metavib.models.results import Results
from metavib.reports.paper.formats import as_csv, as_latex, table_body, table_markdown
from metavib.reports.paper.reproduction import (
    Choices,
    MeasuredRow,
    Reproduction,
    as_json,
    cells_of,
    from_json,
    measured,
    rows_to_measure,
    run_record,
    significance,
)
from metavib.reports.paper.tables import TABLES, PaperRow, PaperTable, table_named
from metavib.runs.grid import CellResult

TABLE = PaperTable(
    name="small",
    label="tab:small",
    caption="a small table",
    dataset="rotated-digits",
    targets=("0", "75"),
    rows=(
        PaperRow("ERM", values=(80.0, 90.0), mean=85.0, algorithm="erm"),
        PaperRow("Rival_1", values=(81.0, None), mean=None, algorithm="a_rival"),
        PaperRow("MetaVIB", values=(90.0, 92.0), mean=91.0, algorithm="metavib"),
    ),
)
# Accuracies on 0 and 75 degrees, seed by seed.
MEASURED = {"ERM": ((0.70, 0.80), (0.72, 0.84)), "MetaVIB": ((0.90, 0.94), (0.90, 0.98))}


def choices(**changes: Any) -> Choices:
    values: dict[str, Any] = {
        "rows": rows_to_measure(TABLE, ["erm", "metavib"]),
        "targets": TABLE.targets,
        "seeds": (0, 1),
        "preset": "demo",
        "protocol": None,
        "backbone": None,
        "weights": None,
        "assignments": {"steps": 5},
    }
    return Choices(**(values | changes))


def results_of(accuracy: float, **changes: Any) -> Results:
    unseen = {"class_averaged_accuracy": {"mean": accuracy}}
    return results_like(**{"unseen": unseen, "protocol": "paper"} | changes)


def reproduced(lost: tuple[str, str, int] | None = None) -> Reproduction:
    cells = cells_of(TABLE, choices(), Path("out"))
    done = []
    for (title, target, seed), cell in cells.items():
        accuracy = MEASURED[title][seed][TABLE.targets.index(target)]
        broken = (title, target, seed) == lost
        done.append(
            CellResult(cell, None if broken else results_of(accuracy), "it broke" if broken else None)
        )
    return measured(TABLE, choices(), cells, done)


def test_a_cell_lies_in_the_folder_of_what_decides_it() -> None:
    cells = cells_of(TABLE, choices(), Path("out"))
    assert len(cells) == 2 * 2 * 2
    assert len({cell.out for cell in cells.values()}) == len(cells)
    for (title, target, seed), cell in cells.items():
        assert cell.out == Path("out") / cell.experiment.identity()
        assert (cell.experiment.target, cell.experiment.seed) == (target, seed)
        assert cell.experiment.algorithm == title.lower()
        assert cell.experiment.training.steps == 5


def test_what_distinguishes_a_row_is_set() -> None:
    table = table_named("beta-rotated-mnist")
    rows = rows_to_measure(table, None)
    assert [row.algorithm for row in rows] == ["metavib"] * 4
    cells = cells_of(table, choices(rows=rows, targets=("0",), seeds=(0,)), Path("out"))
    assert [cell.experiment.to_json()["method"]["beta"] for cell in cells.values()] == [1, 0.1, 0.01, 0.001]


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(UserError, match="unknown target '7'"):
        cells_of(TABLE, choices(targets=("0", "7")), Path("out"))


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_rows_that_can_be_measured(name: str) -> None:
    rows = rows_to_measure(table_named(name), None)
    assert any(row.algorithm == "metavib" for row in rows)
    if name in ("rotated-mnist", "pacs", "vlcs", "ablation-pacs", "ablation-vlcs"):
        assert any(row.algorithm == "erm" for row in rows)


def test_rows_can_be_chosen_and_a_method_that_the_table_lacks_is_added() -> None:
    assert [row.title for row in rows_to_measure(TABLE, ["metavib"])] == ["MetaVIB"]
    chosen = rows_to_measure(TABLE, ["vib", "erm"])
    assert chosen == (PaperRow("VIB", algorithm="vib"), TABLE.rows[0])


def test_the_rivals_are_measured_in_the_rows_that_the_paper_has_for_them() -> None:
    rivals = {
        name: title_of(name) for name in ALGORITHMS if name not in ("erm", "baseline", "vib", "metavib")
    }
    tables = [table_named(name) for name in ("rotated-mnist", "pacs", "vlcs")]
    for name, title in rivals.items():
        rows = [(table, *rows_to_measure(table, [name])) for table in tables]
        assert {row.title for _, row in rows} == {title}
        printed = [(table, row) for table, row in rows if row.mean is not None]
        assert printed
        assert all(row in rows_to_measure(table, None) for table, row in printed)
    (mldg,) = rows_to_measure(table_named("rotated-mnist"), ["mldg"])  # which that table lacks
    assert (mldg.title, mldg.mean) == ("MLDG", None)


def test_averaged_weights_are_rows_of_their_own_beside_those_of_the_paper() -> None:
    assert rows_to_measure(TABLE, None) == (
        TABLE.rows[0],
        TABLE.rows[2],
        PaperRow("ERM + SWAD", algorithm="erm", settings={"average": "swad"}),
        PaperRow("MetaVIB + SWAD", algorithm="metavib", settings={"average": "swad"}),
    )
    assert rows_to_measure(TABLE, ["vib+ema"]) == (
        PaperRow("VIB + EMA", algorithm="vib", settings={"average": "ema"}),
    )


def test_erm_is_beside_the_rows_of_a_table_that_lacks_it() -> None:
    without_erm = replace(TABLE, rows=TABLE.rows[1:])
    titles = [row.title for row in rows_to_measure(without_erm, None)]
    assert titles == ["ERM", "MetaVIB", "ERM + SWAD", "MetaVIB + SWAD"]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("a_rival", "unknown algorithm 'a_rival'"),
        ("errm+swad", "unknown algorithm 'errm'; did you mean 'erm'"),
        ("erm+swat", "unknown average 'swat'; did you mean 'swad'? Known: ema, none, sma, swad"),
        ("erm+", "unknown average ''"),
    ],
)
def test_a_row_of_an_unknown_name_is_refused(name: str, complaint: str) -> None:
    with pytest.raises(UserError) as error:
        rows_to_measure(TABLE, [name])
    assert complaint in str(error.value)


@pytest.mark.parametrize(
    "assignments",
    [
        {"average": "ema", "steps": 5},
        {"training.average": "ema", "steps": 5},
        {"average": "none", "training.average": "ema", "steps": 5},
    ],
    ids=str,
)
def test_what_makes_a_row_wins_over_what_is_assigned_to_all(assignments: dict[str, Any]) -> None:
    own = choices(rows=rows_to_measure(TABLE, ["erm", "erm+swad"]), assignments=assignments)
    cells = cells_of(TABLE, own, Path("out"))
    found = {(title, cell.experiment.training.average) for (title, _, _), cell in cells.items()}
    assert found == {("ERM", "ema"), ("ERM + SWAD", "swad")}
    assert assignments["steps"] == 5  # for the next row
    assert {cell.experiment.training.steps for cell in cells.values()} == {5}


def test_the_table_has_ours_the_papers_the_difference_and_the_significance() -> None:
    header, lines = table_body(reproduced())
    assert header == ["", "0", "75", "mean", "ours - paper", "p"]
    assert lines[0] == ["ERM", "71.00 +- 1.41", "82.00 +- 2.83", "76.50 +- 2.12", "-8.50", ".002"]
    assert lines[1] == ["ERM, paper", "80.00", "90.00", "85.00", "", ""]
    assert lines[2] == ["MetaVIB", "90.00 +- 0.00", "96.00 +- 2.83", "93.00 +- 1.41", "+2.00", ""]
    assert lines[4] == ["Rival_1, paper", "81.00", "", "", "", ""]
    assert len(lines) == 5


def test_our_erm_is_not_called_by_the_papers_network() -> None:
    table = table_named("ablation-pacs")
    row = next(row for row in table.rows if row.algorithm == "erm")
    ours = MeasuredRow(row, {("photo", 0): {"unseen": {"class_averaged_accuracy": 0.5}}}, failures=())
    _, lines = table_body(Reproduction(table, ("photo",), (ours,), ""))
    assert [line[:2] for line in lines[:2]] == [["ERM", "50.00"], ["AlexNet (ERM), paper", "88.47"]]


def test_the_significance_is_that_of_a_paired_t_test() -> None:
    erm, metavib = reproduced().rows
    expected = stats.ttest_rel([90, 90, 94, 98], [70, 72, 80, 84]).pvalue
    assert significance(metavib, erm) == pytest.approx(expected)
    assert significance(metavib, metavib) is None  # no difference to speak of


def test_a_seed_that_lacks_a_target_is_not_part_of_the_mean_and_its_failure_is_told() -> None:
    result = reproduced(lost=("MetaVIB", "75", 1))
    metavib = result.rows[1]
    assert metavib.failures == ("75, seed 1: it broke",)
    assert metavib.by_seed(TABLE.targets) == pytest.approx([92.0])
    assert table_body(result)[1][2][1:4] == ["90.00 +- 0.00", "94.00", "92.00"]


def test_where_nothing_was_measured_the_table_says_so() -> None:
    cells = cells_of(TABLE, choices(), Path("out"))
    result = measured(TABLE, choices(), cells, [])
    assert result.caption == "small: nothing was measured."
    assert result.reference() is None
    assert table_body(result)[1][0] == ["ERM", "-", "-", "-", "", ""]


def test_the_reference_of_a_table_about_one_setting_is_its_best_row() -> None:
    table = table_named("beta-rotated-mnist")
    own = choices(rows=rows_to_measure(table, None), targets=("0",), seeds=(0,))
    cells = cells_of(table, own, Path("out"))
    accuracies = iter([0.1, 0.5, 0.9, 0.7])
    done = [CellResult(cell, results_of(next(accuracies)), None) for cell in cells.values()]
    reference = measured(table, own, cells, done).reference()
    assert reference is not None
    assert reference.row.settings == {"beta": 0.01}


def test_the_caption_says_what_the_numbers_depend_on() -> None:
    caption = reproduced().caption
    for part in ("tab:small", "2 seeds", "digits from none", "5 steps", "source-validation", "preset demo"):
        assert part in caption


def captioned(selection: str = "source-validation", **changes: Any) -> str:
    cells = cells_of(TABLE, choices(), Path("out"))
    results = results_of(0.5, selection=selection)
    return measured(
        TABLE, choices(**changes), cells, [CellResult(cell, results, None) for cell in cells.values()]
    ).caption


def test_the_caption_says_that_the_oracle_peeks_and_no_other_rule_does() -> None:
    assert "selected by oracle (which peeks at the unseen domain), paper." in captioned("oracle")
    for rule in ("source-validation", "last"):
        assert f"selected by {rule}, paper." in captioned(rule)


def test_the_caption_says_how_settings_were_chosen_and_weights_averaged() -> None:
    assert "settings by a rule, paper." in captioned(chosen_by="settings by a rule, ")
    assert "weights averaged by ema, paper." in captioned(assignments={"training.average": "ema"})
    for nothing in ({"average": "none"}, {"average": "none,swad"}, {}):
        assert "averaged by" not in captioned(assignments=nothing)


def test_a_table_keeps_of_a_run_which_it_was_and_the_means_of_its_measures() -> None:
    spread = {"accuracy": {"mean": 0.12345678, "deviation": 0.1}, "ece": {"mean": 0.5, "deviation": 0.0}}
    unseen = spread | {"images": 8, "per_class_accuracy": [1.0, None]}
    expected = {"experiment": "e", "split": "s", "unseen": {"accuracy": 0.123457, "ece": 0.5}}
    assert run_record(results_of(0.5, unseen=unseen)) == expected | {"source_validation": None}
    validated = run_record(results_of(0.5, source_validation=spread))["source_validation"]
    assert validated == {"accuracy": 0.123457, "ece": 0.5}


def test_any_measure_of_a_row_is_told_in_percent() -> None:
    runs = {("0", 1): {"unseen": {"class_averaged_accuracy": 0.5, "ece": 0.03}}}
    row = MeasuredRow(TABLE.rows[0], runs, ())
    assert row.of("ece") == {("0", 1): pytest.approx(3.0)}
    assert row.values == row.of("class_averaged_accuracy") == {("0", 1): pytest.approx(50.0)}


def test_a_table_is_rebuilt_from_its_json() -> None:
    table = table_named("ablation-pacs")
    rows = rows_to_measure(table, ["erm", "vib", "metavib", "metavib+swad"])
    own = choices(rows=rows, targets=table.targets[:2], seeds=(0, 1, 2))
    cells = cells_of(table, own, Path("out"))
    done = [
        CellResult(cell, results_of(0.5 + place**2 / 1000), None) for place, cell in enumerate(cells.values())
    ]
    done[-1] = CellResult(done[-1].cell, None, "it broke")
    first = measured(table, own, cells, done)
    record = json.loads(json.dumps(as_json(first)))
    again = from_json(record, Path("table.json"))
    assert again.table is table
    assert [row.row for row in again.rows] == [row.row for row in first.rows]
    assert [row.values for row in again.rows] == [row.values for row in first.rows]
    assert again.rows[-1].failures == first.rows[-1].failures != ()
    assert table_markdown(again) == table_markdown(first)
    assert as_json(again) == record
    older = {name: value for name, value in record.items() if name != "format"}
    assert as_json(from_json(older, Path("table.json"))) == record
    with pytest.raises(UserError, match=r"table\.json was written by a newer version"):
        from_json(record | {"format": 2}, Path("table.json"))


def test_markdown_latex_csv_and_json_hold_the_same_numbers() -> None:
    result = reproduced()
    assert "| MetaVIB | 90.00 +- 0.00 | 96.00 +- 2.83 | 93.00 +- 1.41 | +2.00 |  |" in table_markdown(result)
    latex = as_latex(result)
    assert r"MetaVIB & 90.00 $\pm$ 0.00 & 96.00 $\pm$ 2.83" in latex
    assert r"Rival\_1, paper" in latex
    assert latex.count(r"\\") == 1 + 5
    rows = list(csv.DictReader(io.StringIO(as_csv(result))))
    assert len(rows) == 8
    assert rows[-1] == {
        "row": "MetaVIB",
        "target": "75",
        "seed": "1",
        "class_averaged_accuracy": "98.0000",
        "paper": "92.0",
    }
    record = json.loads(json.dumps(as_json(result)))
    run = {"target": "75", "seed": 1, "experiment": "e", "split": "s", "source_validation": None}
    assert record["rows"][1]["runs"][-1] == run | {"unseen": {"class_averaged_accuracy": 0.98}}
    assert record["reference"] == "MetaVIB"
    assert [row["mean"] for row in record["rows"]] == pytest.approx([76.5, 93.0])
    assert record["rows"][0]["p_against_reference"] == pytest.approx(0.0016, abs=5e-5)
    assert record["rows"][1]["paper"] == {"0": 90.0, "75": 92.0}
