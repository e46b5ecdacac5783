"""`metavib.load`: a predictor that needs nothing but the model."""

import shutil

import numpy as np
import pytest

import metavib
from metavib.errors import UserError
from metavib.serving.predictor import BATCH


def test_a_run_and_its_model_give_the_same_predictor(finished):
    image = finished.folder / "sketch" / "cat" / "0.png"
    of_run, of_model = metavib.load(finished.run), metavib.load(str(finished.run / "model"))
    assert of_run.classes == of_model.classes == ("cat", "dog")
    assert list(of_run.predict_files([image])) == list(of_model.predict_files([image]))


def test_it_works_after_the_training_data_and_the_run_are_gone(model_alone, finished):
    image = finished.folder / "sketch" / "cat" / "0.png"
    expected = list(metavib.load(finished.run).predict_files([image]))
    assert list(metavib.load(model_alone).predict_files([image])) == expected


@pytest.fixture
def model_alone(training, tmp_path, folder):
    """A model, moved away from its run, of a run of the same experiment whose images are deleted."""
    from metavib.cli import main

    assert main(training()) == 0
    shutil.move(tmp_path / "run" / "model", tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "run")
    shutil.rmtree(folder)
    return tmp_path / "elsewhere"


def test_pixels_can_be_given_instead_of_files(finished):
    predictor = metavib.load(finished.run)
    image = finished.folder / "sketch" / "cat" / "0.png"
    pixels = predictor.open(image)
    assert pixels.dtype == np.uint8
    assert predictor.predict([pixels]) == [prediction for _, prediction in predictor.predict_files([image])]


def test_more_files_than_a_batch_come_back_in_order(finished):
    predictor = metavib.load(finished.run)
    paths = sorted(finished.folder.rglob("*.png"))
    many = (paths * (BATCH // len(paths) + 1))[: BATCH + 3]
    answers = list(predictor.predict_files(many))
    assert [name for name, _ in answers] == [str(path) for path in many]
    first, again = answers[0][1], answers[len(paths)][1]
    assert first.probabilities == pytest.approx(again.probabilities, abs=1e-5)


def test_the_seed_decides_the_draws(finished):
    image = finished.folder / "sketch" / "cat" / "0.png"
    first, same, other = (
        next(metavib.load(finished.run, seed=seed).predict_files([image]))[1] for seed in (0, 0, 1)
    )
    assert first == same
    assert first != other


def test_no_image_is_no_answer(finished):
    assert list(metavib.load(finished.run).predict_files([])) == []


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(UserError, match="nowhere"):
        metavib.load(tmp_path / "nowhere")


def test_no_flipped_bit_in_the_description_goes_unnoticed(finished_copy):
    path = finished_copy.run / "model" / "config.json"
    good = path.read_bytes()
    for position in range(len(good)):
        flipped = bytearray(good)
        flipped[position] ^= 1 << (position % 8)
        path.write_bytes(flipped)
        with pytest.raises(UserError, match=r"config\.json"):
            metavib.load(finished_copy.run)
