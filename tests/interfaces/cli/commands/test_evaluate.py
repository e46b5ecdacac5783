"""`metavib evaluate`: the same numbers again, and honest ones on other domains."""

import json

import pytest


def evaluated(metavib, *arguments):
    status, out, err = metavib("evaluate", *arguments, "--json")
    assert status == 0, err
    return json.loads(out), err


def flat(measured):
    return {
        f"{name} {kind}": value
        for name, entry in measured.items()
        if isinstance(entry, dict)
        for kind, value in entry.items()
    }


def test_the_unseen_domain_gives_the_numbers_of_the_run(metavib, finished):
    results = json.loads((finished.run / "results.json").read_text())
    again, _ = evaluated(metavib, finished.run)
    assert again["domain"] == "sketch"
    assert again["seen_in_training"] is False
    assert flat(again["measured"]) == pytest.approx(flat(results["unseen"]), abs=1e-5)
    assert again["measured"]["images"] == results["unseen"]["images"]


def test_a_source_domain_is_called_one_and_measured_on_validation_images(metavib, finished):
    again, err = evaluated(metavib, finished.run, "--domain", "photo")
    assert again["seen_in_training"] is True
    assert again["measured"]["images"] == 2
    assert "'photo' is a source domain of this run" in err
    assert "source domain 'photo', 2 images" in err


def test_the_number_of_repeats_can_be_chosen(metavib, finished):
    again, _ = evaluated(metavib, finished.run, "--repeats", "3")
    assert again["measured"]["measured_by"].startswith("3 repeats")


def test_measuring_changes_nothing(metavib, finished):
    before = {path: path.stat().st_mtime_ns for path in finished.run.rglob("*")}
    evaluated(metavib, finished.run)
    assert {path: path.stat().st_mtime_ns for path in finished.run.rglob("*")} == before


def test_an_unknown_domain_lists_those_that_exist(refused, finished):
    line = refused("evaluate", finished.run, "--domain", "foto")
    assert "did you mean 'photo'" in line
    assert "art, cartoon, photo, sketch" in line


def test_no_repeats_are_refused(refused, finished):
    assert "repeats must be" in refused("evaluate", finished.run, "--repeats", "0")


def test_a_directory_that_is_missing_or_no_run_is_named(refused, tmp_path):
    assert "nowhere" in refused("evaluate", tmp_path / "nowhere")
    assert str(tmp_path) in refused("evaluate", tmp_path)


def test_an_unfinished_run_cannot_be_measured(refused, interrupted, training, tmp_path):
    interrupted(*training(), after=1)
    assert "not a finished run" in refused("evaluate", tmp_path / "run")


def test_changed_images_are_noticed(metavib, refused, training, folder, tmp_path):
    assert metavib(*training()).status == 0
    (folder / "art" / "cat" / "0.png").unlink()
    assert "images changed" in refused("evaluate", tmp_path / "run")


@pytest.fixture
def without_photo(metavib, training, tmp_path):
    """A finished run in which "photo" played no part, with averaged weights."""
    status, out, _ = metavib(*training("--without", "photo", "--average", "swad", "--json"))
    assert status == 0
    return tmp_path / "run", json.loads(out)


def test_a_run_without_a_domain_is_measured_as_it_was(metavib, without_photo):
    run, results = without_photo
    again, err = evaluated(metavib, run)
    assert flat(again["measured"]) == pytest.approx(flat(results["unseen"]), abs=1e-5)
    assert again["split"] == results["split"]
    assert "weights averaged by swad" in err
    assert evaluated(metavib, run, "--domain", "art")[0]["seen_in_training"] is True


def test_a_domain_that_was_left_out_is_as_unseen_as_the_target(metavib, without_photo):
    run, _ = without_photo
    again, err = evaluated(metavib, run, "--domain", "photo")
    assert again["domain"] == "photo"
    assert again["seen_in_training"] is False
    assert again["measured"]["images"] == 8  # all of them
    assert "unseen domain 'photo', 8 images" in err


def test_copies_of_training_images_are_left_out_of_a_domain_that_was_left_out(metavib, without_photo, folder):
    run, _ = without_photo
    for label in ("cat", "dog"):
        for image in (folder / "art" / label).iterdir():
            (folder / "photo" / label / image.name).write_bytes(image.read_bytes())
    (folder / "photo" / "cat" / "own.png").write_bytes((folder / "sketch" / "cat" / "0.png").read_bytes())
    again, _ = evaluated(metavib, run, "--domain", "photo")
    assert again["data"]["target"]["test_images_left_out_as_copies"] == 8
    assert again["measured"]["images"] == 1
