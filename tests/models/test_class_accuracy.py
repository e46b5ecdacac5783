"""Classes one by one, worst first."""

from __future__ import annotations

from made_up_results import results_like

from metavib.models.class_accuracy import ClassRow, class_rows, never_right, rows_of_run
from metavib.models.results import ClassAccuracies


def row(label, accuracy, images=4, domain="art", unseen=True):
    return ClassRow(label, domain, unseen, accuracy, images)


def test_the_worst_come_first_and_of_equals_those_with_more_images():
    measured = ClassAccuracies((1.0, 0.0, None, 0.0), (3, 2, 0, 9))
    rows = class_rows(["a", "b", "c", "d"], measured, "art", unseen=True)
    assert rows == [row("d", 0.0, 9), row("b", 0.0, 2), row("a", 1.0, 3)]


def test_a_run_has_its_unseen_domain_and_each_source_domain():
    results = results_like(
        classes=["a", "b"],
        unseen_domain="sketch",
        unseen={"per_class_accuracy": [0.5, 0.2], "per_class_images": [4, 5]},
        source_validation={
            "domains": {
                "art": {"per_class_accuracy": [1.0, None], "per_class_images": [1, 0]},
                "photo": {"per_class_accuracy": [0.0, 1.0], "per_class_images": [2, 2]},
            }
        },
    )
    assert [(r.label, r.domain, r.unseen, r.images) for r in rows_of_run(results)] == [
        ("b", "sketch", True, 5),
        ("a", "sketch", True, 4),
        ("a", "photo", False, 2),
        ("b", "photo", False, 2),
        ("a", "art", False, 1),
    ]


def test_results_of_an_earlier_version_have_no_numbers_of_images():
    results = results_like(classes=["a"], unseen_domain="x", unseen={"per_class_accuracy": [0.5]})
    (found,) = rows_of_run(results)
    assert (found.images, found.number) == (None, "?")


def test_classes_that_are_never_right_are_named_and_many_are_counted():
    assert never_right([row("a", 0.5)]) is None
    assert never_right([row("a", 0.0, 1), row("b", 1.0)]) == "0 % is right of 'a' in 'art' (1 image)"
    assert never_right([row(str(n), 0.0) for n in range(8)]).endswith("(4 images), and 3 more")
