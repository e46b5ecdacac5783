"""What people see of a finished run: classes, thresholds, and what to expect."""

from __future__ import annotations

import json

import pytest

from metavib.interfaces.cli.outcome import checked_on, expected_in_words, show_classes
from metavib.models.class_accuracy import ClassRow
from metavib.models.results import Expected, ExpectedDomain, Spread


def rows(count, accuracy=0.5, *, unseen=True):
    return [ClassRow(f"c{n}", "art", unseen, accuracy, n + 1) for n in range(count)]


def test_few_classes_are_all_shown_the_worst_first(capsys):
    show_classes([ClassRow("cat", "art", True, 0.75, 8), ClassRow("dog", "art", True, 0.25, 4)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "by class on the unseen domain, worst first:"
    assert lines[3].split() == ["dog", "art", "25.0", "4"]
    assert lines[4].split() == ["cat", "art", "75.0", "8"]
    assert len(lines) == 5


def test_of_many_classes_ten_are_shown(capsys):
    show_classes(rows(300))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "by class on the unseen domain, the worst 10 of 300 (--json has all):"
    assert len(lines) == 13


def test_classes_at_zero_are_one_warning_for_each_kind_of_image(capsys):
    show_classes(rows(40, 0.0) + rows(1, 0.0, unseen=False))
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert warnings == [
        "warning: 0 % is right of 'c39' in 'art' (40 images), 'c38' in 'art' (39 images), 'c37' in 'art' (38 "
        "images), 'c36' in 'art' (37 images), 'c35' in 'art' (36 images), and 35 more.",
        "warning: 0 % is right of 'c0' in 'art' (1 image).",
    ]


@pytest.mark.parametrize(
    ("images", "words"),
    [(15, "checked on 15 images"), (1, "checked on 1 image"), (None, "checked on source validation images")],
)
def test_a_threshold_says_how_many_images_it_rests_on(images, words):
    assert checked_on(images) == words


def test_one_domain_has_no_spread():
    spread = Spread(0.5, 0.0)
    one = Expected(3, {"art": ExpectedDomain(0.5, 0.5, 3, 8)}, spread, spread)
    assert expected_in_words(one) == "accuracy 50.00 %, over 1 domain that 3 runs held out"


def test_train_shows_classes_and_what_the_threshold_rests_on(metavib, finished):
    status, out, err = metavib(*finished.command, "--json")
    assert status == 0
    assert "by class on the unseen domain, worst first:" in err
    assert "by class on source validation, worst first:" in err
    assert "(checked on 6 images)" in err
    results = json.loads(out)
    assert results["unseen"]["per_class_images"] == [4, 4]
    assert results["unsure"]["checked_on"] == 6


def test_evaluate_shows_the_classes_of_its_domain(metavib, finished):
    status, out, err = metavib("evaluate", finished.run, "--domain", "photo", "--json")
    assert status == 0
    assert "by class on source validation, worst first:" in err
    assert json.loads(out)["measured"]["per_class_images"] == [1, 1]
    assert "by class on the unseen domain, worst first:" in metavib("evaluate", finished.run).out


def test_predict_says_how_many_images_its_threshold_rests_on(metavib, finished):
    image = next((finished.folder / "sketch" / "cat").iterdir())
    assert "(checked on 6 images)" in metavib("predict", finished.run, image).out


def test_the_card_has_classes_and_thresholds(finished):
    card = (finished.run / "model" / "README.md").read_text()
    assert "| class | domain | accuracy | images |" in card
    assert "| `cat` | `sketch` (unseen) |" in card
    assert "checked on 6 images" in card
