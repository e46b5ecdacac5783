"""Classes one by one in the report."""

from __future__ import annotations

from metavib.reports.class_tables import SHOWN, class_tables
from metavib.runs.records import Group


def results(accuracies, images=(4, 5, 6), domain="0", validation=None):
    unseen = {"per_class_accuracy": list(accuracies), "per_class_images": list(images)}
    return {"unseen": unseen, "unseen_domain": domain, "source_validation": validation}


def group(*runs, classes=("a", "b", "c")):
    return Group("rotated-digits", "p", classes, runs)


def test_classes_are_means_over_seeds_beside_one_another_and_worst_first(record):
    runs = [
        record("erm", seed=0, results=results([0.2, 0.8, None])),
        record("erm", seed=1, results=results([0.4, 0.8, None])),
        record("metavib", seed=0, results=results([0.9, 0.1, None])),
    ]
    (table,) = class_tables(group(*runs))
    assert table.columns == ("ERM", "MetaVIB")
    assert [(line.label, line.images, line.texts) for line in table.lines] == [
        ("b", "5", ("80.0", "10.0")),
        ("a", "4", ("30.0", "90.0")),
    ]
    assert table.csv().splitlines()[1] == "b,0,5,ERM,80.0000"


def test_a_class_that_no_run_of_a_method_gets_right_is_warned_of(record):
    runs = [record("erm", seed=seed, results=results([0.0, 0.0, seed / 2])) for seed in (0, 1)]
    (table,) = class_tables(group(*runs))
    assert table.warning == "ERM: 0 % is right of 'b' in '0' (5 images), 'a' in '0' (4 images)"
    assert class_tables(group(record("erm", results=results([0.1, 0.1, 0.1]))))[0].warning is None


def test_source_validation_has_a_table_of_its_own(record):
    validation = {"domains": {"15": {"per_class_accuracy": [1.0, 0.5, None], "per_class_images": [2, 2, 0]}}}
    unseen, sources = class_tables(group(record("erm", results=results([1, 1, 1], validation=validation))))
    assert unseen.name != sources.name
    assert [(line.label, line.domain) for line in sources.lines] == [("b", "15"), ("a", "15")]


def test_of_thousands_the_page_shows_the_worst_and_the_file_has_all(record):
    names = [f"c{number}" for number in range(3 * SHOWN)]
    many = results([number / 1000 for number in range(len(names))], range(len(names)))
    (table,) = class_tables(group(record("erm", results=many | {"classes": names}), classes=tuple(names)))
    assert len(table.shown) == SHOWN
    assert f"{2 * SHOWN} more are in the CSV" in table.caption
    assert len(table.csv().splitlines()) == 1 + len(names)


def test_runs_of_an_earlier_version_have_what_they_have(record):
    assert class_tables(group(record("erm", results={"unseen": {"accuracy": {"mean": 0.5}}}))) == []
