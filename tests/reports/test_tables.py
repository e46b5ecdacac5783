"""Tables: means over seeds worked out by hand, the best marked, the paper's numbers where it has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from metavib.reports.tables import measure_table, runs_by_row, tables_of
from metavib.runs.records import Group

ACCURACY, ECE = "class_averaged_accuracy", "ece"


@pytest.fixture
def measured(record: Callable[..., Any]) -> Callable[..., Any]:
    """A run with a class-averaged accuracy."""

    def make(value: float, *where: Any, **more: Any) -> Any:
        unseen = {"class_averaged_accuracy": {"mean": value, "deviation": 0.0}} | more.pop("unseen", {})
        return record(*where, **more, results={"unseen": unseen})

    return make


def group(*runs: Any, dataset: str = "rotated-digits", protocol: str = "paper: p") -> Group:
    return Group(dataset, protocol, ("a", "b", "c"), runs)


def texts(table: Any) -> dict[str, list[str | None]]:
    return {row.title: [value and value.text for value in row.values] for row in table.rows}


def test_cells_are_means_over_seeds_and_the_mean_is_over_targets(measured):
    runs = [measured(0.5, "erm", "0", 0), measured(0.7, "erm", "0", 1)]
    runs += [measured(0.9, "erm", "75", 0), measured(0.9, "erm", "75", 1)]
    table = measure_table(group(*runs), ACCURACY)
    assert table.columns == ("0", "75", "mean")
    assert texts(table) == {"ERM": ["60.00 ± 14.14", "90.00 ± 0.00", "75.00 ± 7.07"]}
    assert "over 2 seeds" in table.caption


def test_one_seed_has_no_deviation_and_one_target_no_mean(measured):
    table = measure_table(group(measured(0.5, "erm")), ACCURACY)
    assert table.columns == ("0",)
    assert texts(table) == {"ERM": ["50.00"]}
    assert "One seed" in table.caption
    assert not table.rows[0].values[0].best  # alone is not best


def test_a_mean_takes_seeds_that_have_all_targets(measured):
    runs = [measured(0.5, "erm", "0", 0), measured(0.7, "erm", "75", 0), measured(0.1, "erm", "0", 1)]
    table = measure_table(group(*runs, measured(0.2, "vib", "0", 0)), ACCURACY)
    assert texts(table) == {"ERM": ["30.00 ± 28.28", "70.00", "60.00"], "VIB": ["20.00", None, None]}
    assert "over 1 to 2 seeds" in table.caption


def test_a_copy_of_a_run_counts_once(measured):
    table = measure_table(group(measured(0.5, "erm"), measured(0.5, "erm")), ACCURACY)
    assert table.rows[0].values[0].seeds == 1


def test_the_best_is_high_for_accuracy_and_low_for_calibration_and_equals_share_it(measured):
    def best(measure: Any, runs: Any) -> list[bool]:
        return [row.values[0].best for row in measure_table(group(*runs), measure).rows]

    values = {"erm": 0.5, "vib": 0.7, "metavib": 0.70001}
    runs = [
        measured(value, name, unseen={"ece": {"mean": value, "deviation": 0}})
        for name, value in values.items()
    ]
    assert best(ACCURACY, runs) == [False, True, True]
    assert best(ECE, runs) == [True, False, False]


def test_a_row_that_peeks_says_so_and_is_never_best(measured):
    oracle = measured(0.9, "metavib", settings={"selection": "oracle"})
    table = measure_table(group(measured(0.5, "erm"), measured(0.6, "vib"), oracle), ACCURACY)
    assert [(row.title, row.values[0].best) for row in table.rows] == [
        ("ERM", False),
        ("VIB", True),
        ("MetaVIB (peeks)", False),
    ]
    assert "not a fair comparison" in table.caption


def test_what_differs_within_a_method_is_named(measured):
    settings = ({"beta": 0.1}, {"beta": 0.01}, {"beta": 0.1})
    runs = [measured(0.5, "metavib", "0", seed, settings=own) for seed, own in enumerate(settings)]
    runs += [measured(0.5, "erm", settings={"steps": 9}), measured(0.5, "erm", settings={"average": "swad"})]
    rows = runs_by_row(runs)
    assert list(rows) == ["MetaVIB, beta 0.01", "MetaVIB, beta 0.1", "ERM", "ERM + SWAD"]
    assert [run.experiment.seed for run in rows["MetaVIB, beta 0.1"]] == [0, 2]


def test_domains_left_out_make_a_row_of_their_own(record):
    from dataclasses import replace

    run = record()
    without = replace(run, experiment=replace(run.experiment, without=("15", "30")))
    assert list(runs_by_row([run, without])) == ["MetaVIB, without 15+30", "MetaVIB, without none"]


def test_a_run_without_a_measure_has_no_cell(record):
    bad = record("vib", results={"unseen": {"other": {"mean": 0.5}}})
    assert measure_table(group(bad), ACCURACY) is None
    assert tables_of(group(bad)) == []


def test_the_papers_rows_stand_below_ours_and_in_its_order(measured):
    runs = [measured(0.5, "erm", target) for target in ("art_painting", "cartoon", "photo", "sketch")]
    table = measure_table(group(*runs, dataset="pacs", protocol="official lists"), ACCURACY)
    assert table.columns == ("photo", "art_painting", "cartoon", "sketch", "mean")
    assert [row.title for row in table.rows] == ["ERM", "MetaVIB, paper", "MASF, paper"]
    assert texts(table)["MetaVIB, paper"][-1] == "75.74"
    assert texts(table)["MASF, paper"][0].startswith("90.68")
    assert not any(value.best for row in table.rows for value in row.values)
    assert [row.ours for row in table.rows] == [True, False, False]
    assert "ECCV 2020" in table.caption


def test_some_targets_of_the_paper_have_no_printed_mean(measured):
    runs = [measured(0.5, "erm", target) for target in ("0", "75")]
    table = measure_table(group(*runs, dataset="rotated-mnist"), ACCURACY)
    assert texts(table)["MetaVIB, paper"] == ["91.28 ± 0.21", "92.75 ± 0.31", None]


def test_other_protocols_domains_and_measures_are_not_the_papers(measured):
    def printed(run: Any, measure: Any = ACCURACY, **of: str) -> int:
        return len(measure_table(group(run, **of), measure).rows) - 1

    ece = {"ece": {"mean": 0.1, "deviation": 0}}
    assert printed(measured(0.5, "erm", "0"), dataset="rotated-mnist", protocol="domainbed: all") == 0
    assert printed(measured(0.5, "erm", "tree"), dataset="pacs") == 0
    assert printed(measured(0.5, "erm", "photo", unseen=ece), ECE, dataset="pacs") == 0
    assert printed(measured(0.5, "erm", "photo"), dataset="pacs") == 2


def test_csv_says_how_many_seeds(measured):
    runs = [measured(0.5, "erm", "photo", 0), measured(0.7, "erm", "photo", 1)]
    lines = measure_table(group(*runs, dataset="pacs"), ACCURACY).csv().splitlines()
    assert lines[:3] == [
        "row,unseen,mean,deviation,seeds",
        "ERM,photo,60.0000,14.1421,2",
        '"MetaVIB, paper",photo,91.9300,0.2300,',
    ]
