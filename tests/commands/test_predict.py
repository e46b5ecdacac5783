"""`metavib predict`: answers that add up, in three forms."""

import csv
import io
import json
import math

import pytest


@pytest.fixture
def images(finished):
    return sorted(finished.folder.glob("sketch/*/*.png"))


@pytest.fixture
def predictions(metavib, finished):
    def predict(*arguments):
        status, out, _ = metavib("predict", finished.run, *arguments, "--json")
        assert status == 0
        return json.loads(out)["predictions"]

    return predict


def test_the_table_has_a_line_for_each_file(metavib, finished, images):
    status, out, err = metavib("predict", finished.run, *images)
    assert status == 0
    lines = out.splitlines()
    assert lines[0].split() == ["file", "label", "probability", "entropy", "of", "the", "model"]
    assert [line.split()[0] for line in lines[2:]] == [str(path) for path in images]
    assert all(line.split()[1] in ("cat", "dog") for line in lines[2:])
    assert f"{math.log(2):.3f} is no idea" in err


def test_probabilities_and_entropies_are_within_their_limits(predictions, images):
    for answer in predictions(*images):
        probabilities = answer["probabilities"]
        assert list(probabilities) == ["cat", "dog"]
        assert sum(probabilities.values()) == pytest.approx(1, abs=1e-5)
        assert answer["label"] == max(probabilities, key=probabilities.get)
        assert answer["probability"] == max(probabilities.values())
        assert 0 <= answer["model_entropy"] <= answer["entropy"] + 1e-6
        assert answer["entropy"] <= math.log(2) + 1e-6


def test_csv_says_the_same_as_json(metavib, predictions, finished, images):
    _, out, _ = metavib("predict", finished.run, *images, "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    for row, answer in zip(rows, predictions(*images), strict=True):
        assert row["file"] == answer["file"]
        assert row["label"] == answer["label"]
        assert float(row["entropy"]) == answer["entropy"]
        assert {name: float(row[name]) for name in ("cat", "dog")} == answer["probabilities"]


def test_the_same_seed_gives_the_same_answer_and_another_another(predictions, images):
    assert predictions(*images, "--seed", 3) == predictions(*images, "--seed", 3)
    assert predictions(*images, "--seed", 3) != predictions(*images, "--seed", 4)


def test_an_answer_does_not_depend_on_the_images_beside_it(predictions, images):
    together = predictions(*images)
    for path, answer in zip(images, together, strict=True):
        alone = predictions(path)[0]
        assert alone["probabilities"] == pytest.approx(answer["probabilities"], abs=1e-5)
    assert [a["file"] for a in predictions(*reversed(images))] == [a["file"] for a in reversed(together)]


def test_a_folder_stands_for_the_images_in_it(predictions, finished, images):
    assert predictions(finished.folder / "sketch") == predictions(*images)


def test_the_model_directory_will_do(metavib, finished, images):
    _, of_run, _ = metavib("predict", finished.run, images[0], "--csv")
    _, of_model, _ = metavib("predict", finished.run / "model", images[0], "--csv")
    assert of_run == of_model


@pytest.mark.parametrize("content", [b"", b"no image", None])
def test_a_file_that_cannot_be_read_is_named_and_nothing_is_printed(
    refused, finished, images, tmp_path, content
):
    bad = tmp_path / "bad.png"
    if content is not None:
        bad.write_bytes(content)
    assert str(bad) in refused("predict", finished.run, images[0], bad)


def test_what_is_no_file_is_not_waited_for(refused, finished):
    assert "not a regular file" in refused("predict", finished.run, "/dev/zero")


def test_a_folder_without_images_is_named(refused, finished, tmp_path):
    assert str(tmp_path) in refused("predict", finished.run, tmp_path)


def test_two_forms_at_once_are_refused(refused, finished, images):
    assert "--csv" in refused("predict", finished.run, images[0], "--csv")


def test_a_missing_model_is_named(refused, images, tmp_path):
    assert "nowhere" in refused("predict", tmp_path / "nowhere", images[0])
    assert "config.json" in refused("predict", tmp_path, images[0])


def test_no_file_at_all_is_refused(refused, finished):
    assert "FILE" in refused("predict", finished.run)
