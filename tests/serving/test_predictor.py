"""`metavib.load`: a predictor that needs nothing but the model."""

import contextlib
import json
import math
import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import metavib
from metavib.core.errors import UserError
from metavib.core.json_record import checksum
from metavib.data.transforms import Preprocessing, with_channels
from metavib.interfaces.cli.main import main
from metavib.models.directory import description_of
from metavib.runs.grid import run_grid
from metavib.runs.one_run import ExecutionContext
from metavib.serving.pixels import decode_given
from metavib.serving.predictor import BATCH


@pytest.fixture
def images(finished):
    return sorted(finished.folder.rglob("*.png"))


@pytest.fixture(scope="session")
def erm(finished, tmp_path_factory):
    """A run of ERM on the same images."""
    out = tmp_path_factory.mktemp("erm") / "run"
    methods = [word for word in finished.command if "draws" not in word and "latent_width" not in word]
    command = [
        word for at, word in enumerate(methods) if not (word == "--set" and methods[at + 1] == "--set")
    ]
    command[command.index("--out") + 1] = str(out)
    assert main([*command, "--algorithm", "erm"]) == 0
    return out


def test_a_run_and_its_model_give_the_same_predictor(finished, images):
    of_run, of_model = metavib.load(finished.run), metavib.load(str(finished.run / "model"))
    assert isinstance(of_run, metavib.Predictor)
    assert of_run.classes == of_model.classes == ("cat", "dog")
    assert of_run(images) == of_model(images)


def test_it_works_after_the_training_data_and_the_run_are_gone(model_alone, finished, images):
    there, elsewhere = metavib.load(finished.run), metavib.load(model_alone)
    assert elsewhere(images) == there(images)
    assert elsewhere.threshold == there.threshold


@pytest.fixture
def model_alone(training, tmp_path, folder):
    """A model, moved away from its run, of a run of the same experiment whose images are deleted."""
    assert main(training()) == 0
    shutil.move(tmp_path / "run" / "model", tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "run")
    shutil.rmtree(folder)
    return tmp_path / "elsewhere"


def test_an_answer_has_all_its_parts(finished, images):
    predictor = metavib.load(finished.run)
    for answer in predictor(images):
        assert isinstance(answer, metavib.Prediction)
        assert tuple(answer.probabilities) == tuple(answer.distances) == ("cat", "dog")
        assert answer.probability == answer.probabilities[answer.label] == max(answer.probabilities.values())
        assert len(answer.classifiers) == predictor.draws == 2
        by_hand = -sum(p * math.log(p) for p in answer.probabilities.values())
        assert answer.entropy == pytest.approx(by_hand, abs=1e-5)
        assert 0 <= answer.model_entropy <= answer.entropy + 1e-6
        assert answer.unsure is (answer.entropy > predictor.threshold)
        json.dumps(vars(answer))


def test_pixels_can_be_given_in_any_form(finished, images):
    predictor = metavib.load(finished.run)
    path = images[0]
    pixels, content = predictor.open(path), path.read_bytes()
    assert pixels.dtype == np.uint8
    assert pixels.shape == (1, 28, 28)
    assert np.array_equal(predictor.decode(content, "x"), pixels)
    (expected,) = predictor.predict([pixels])
    with Image.open(path) as image:
        array = np.asarray(image)
        for given in (image, array, torch.from_numpy(array.copy()), path, str(path), [path], (image,)):
            assert predictor(given) == [expected]
    assert predictor(np.stack([array, array]))[0].label == expected.label


@pytest.mark.parametrize(
    ("channels", "shape"), [(1, (28, 28)), (1, (28, 28, 1)), (1, (1, 28, 28)), (3, (9, 9, 3)), (3, (3, 9, 9))]
)
def test_images_that_are_ready_are_what_pillow_would_make_of_them(finished, channels, shape):
    predictor = metavib.load(finished.run)
    predictor.preprocessing = Preprocessing(max(shape), channels, (0.0,) * channels, (1.0,) * channels)
    images = np.random.default_rng(0).integers(0, 256, (2, *shape), dtype=np.uint8)
    ready = predictor.ready(images)
    assert ready.shape == (2, channels, max(shape), max(shape))
    for image, own in zip(images, ready, strict=True):
        pixels = decode_given(image, max(shape), predictor.pixel_range).pixels
        assert np.array_equal(own, with_channels(pixels[None], channels)[0])


@pytest.mark.parametrize(
    ("size", "channels", "images"),
    [
        (28, 1, np.zeros((2, 28, 28))),
        (28, 1, np.zeros((2, 27, 28), dtype=np.uint8)),
        (28, 1, np.zeros((2, 28, 28, 3), dtype=np.uint8)),
        (28, 1, np.zeros(2, dtype=np.uint8)),
        (9, 3, np.zeros((2, 9, 9), dtype=np.uint8)),
        (9, 3, np.zeros((2, 9, 9, 4), dtype=np.uint8)),
        (3, 3, np.zeros((2, 3, 3, 3), dtype=np.uint8)),  # which axis is the colour?
    ],
)
def test_all_other_images_are_not_ready(finished, size, channels, images):
    predictor = metavib.load(finished.run)
    predictor.preprocessing = Preprocessing(size, channels, (0.0,) * channels, (1.0,) * channels)
    assert predictor.ready(images) is None


def test_columns_say_what_answers_say(finished, images):
    predictor = metavib.load(finished.run)
    pixels = np.stack([predictor.open(path) for path in images[:5]])
    told = predictor.classify(pixels)
    assert list(told) == predictor.predict(list(pixels))
    assert told.probabilities.shape == (5, 2)
    assert told.classifiers.shape == (5, predictor.draws, 2)
    assert predictor.classify(pixels, classifiers=False).classifiers is None


def test_bytes_that_are_no_image_are_named(finished):
    with pytest.raises(UserError, match=r"^holiday\.jpg: is not a JPEG"):
        metavib.load(finished.run).decode(b"<svg/>", "holiday.jpg")


def test_more_images_than_a_batch_come_back_in_order_and_do_not_mind_each_other(finished, images):
    predictor = metavib.load(finished.run)
    alone = [predictor(path)[0] for path in images]
    many = predictor(path for _ in range(BATCH // len(images) + 1) for path in images)
    assert len(many) > BATCH
    for number, answer in enumerate(many):
        expected = alone[number % len(images)]
        assert answer.label == expected.label
        assert answer.probabilities == pytest.approx(expected.probabilities, abs=1e-5)
        assert answer.distances == pytest.approx(expected.distances, abs=1e-4)


def test_answers_by_draws_are_the_means_of_the_drawn_classifiers(finished, images):
    predictor = metavib.load(finished.run, mode="sampled")
    for answer in predictor(images):
        of_draws = np.mean(answer.classifiers, axis=0)
        assert list(answer.probabilities.values()) == pytest.approx(of_draws, abs=1e-6)


@pytest.mark.parametrize("mode", ["steady", "sampled"])
def test_the_seed_decides_the_draws(finished, images, mode):
    first, same, other = (metavib.load(finished.run, seed=seed, mode=mode)(images[0]) for seed in (0, 0, 1))
    assert first == same
    assert first[0].classifiers != other[0].classifiers


def test_the_seed_does_not_decide_the_answer(finished, images):
    one, other, at_mean = (
        metavib.load(finished.run, seed=seed, mode=mode)
        for seed, mode in ((0, "steady"), (1, "steady"), (0, "mean"))
    )
    assert metavib.load(finished.run).mode == "steady"
    assert one.threshold == other.threshold == at_mean.threshold
    for first, second, third in zip(one(images), other(images), at_mean(images), strict=True):
        for name in ("label", "probability", "probabilities", "entropy", "unsure", "distances"):
            assert getattr(first, name) == getattr(second, name) == getattr(third, name)
        assert first.model_entropy != second.model_entropy  # which draws measure
        assert third.classifiers == ()


def test_disagreement_is_a_part_of_the_uncertainty_however_sure_the_mean_is(finished, images):
    predictor = metavib.load(finished.run)
    with torch.no_grad():
        predictor.algorithm.classifier_mean.mul_(1e3)
        predictor.algorithm.classifier_log_variance.fill_(14.0)
    answers = predictor(images)
    assert min(answer.entropy for answer in answers) < 1e-3
    for answer in answers:
        assert 0 <= answer.model_entropy <= answer.entropy


def test_at_the_mean_nothing_is_drawn(finished, images):
    one, other = (metavib.load(finished.run, mode="mean", seed=seed) for seed in (0, 1))
    assert one(images) == other(images)
    for answer in one(images):
        assert answer.classifiers == ()
        assert answer.model_entropy == pytest.approx(0, abs=1e-6)
    assert one.threshold != metavib.load(finished.run, mode="sampled").threshold


def test_the_coverage_is_that_of_the_source_validation_images(finished):
    half, nearly_all, all_of_them = (metavib.load(finished.run, coverage=share) for share in (0.5, 0.9, 1.0))
    assert half.threshold <= nearly_all.threshold <= all_of_them.threshold
    assert half.threshold == half.description.calibration.mean[50]
    assert all_of_them.threshold == all_of_them.description.calibration.mean[-1]


def test_distances_are_in_units_of_what_is_usual(finished, images):
    predictor = metavib.load(finished.run)
    with torch.no_grad():
        batch = predictor.preprocessing(torch.from_numpy(predictor.open(images[0]))[None])
        feature = predictor.algorithm.embed(batch)[0]
        far = (feature - predictor.algorithm.class_features[1]).norm().item()
    usual = predictor.description.calibration.class_distance
    assert predictor(images[0])[0].distances["dog"] == pytest.approx(far / usual, rel=1e-4)


def test_erm_has_thresholds_but_neither_classifiers_nor_distances(erm, images):
    predictor = metavib.load(erm)
    assert predictor.threshold is not None
    for answer in predictor(images):
        assert (answer.classifiers, answer.distances) == ((), {})
        assert answer.unsure is not None


def test_a_model_of_an_earlier_version_loads_without_thresholds(finished_copy, images):
    path = finished_copy.run / "model" / "config.json"
    record = json.loads(path.read_text())
    del record["calibration"], record["check"]
    path.write_text(json.dumps(record | {"check": checksum(record)}))
    predictor = metavib.load(finished_copy.run)
    assert predictor.threshold is None
    (answer,) = predictor(images[0])
    assert (answer.unsure, answer.distances) == (None, {})
    assert answer.probabilities == metavib.load(finished_copy.run)(images[0])[0].probabilities


@pytest.mark.parametrize("calibration", [3, {}, {"images": 1}, []], ids=str)
def test_nonsense_in_place_of_thresholds_is_no_model(finished_copy, calibration):
    path = finished_copy.run / "model" / "config.json"
    record = json.loads(path.read_text()) | {"calibration": calibration}
    del record["check"]
    path.write_text(json.dumps(record | {"check": checksum(record)}))
    with pytest.raises(UserError, match="does not describe a model"):
        metavib.load(finished_copy.run)


def test_a_run_without_validation_images_has_no_thresholds(training, tmp_path):
    assert main(training("--set", "validation_share=0", "--set", "selection=last")) == 0
    assert metavib.load(tmp_path / "run").threshold is None


def test_stacked_runs_have_the_thresholds_that_they_have_alone(cell):
    together, alone = (
        [cell(target, seed, "metavib", place) for target, seed in (("art", 1), ("photo", 2))]
        for place in ("together", "alone")
    )
    for cells, batch in ((together, 2), (alone, 1)):
        run_grid(cells, ExecutionContext(torch.device("cpu")), batch=batch)
    for mine, own in zip(together, alone, strict=True):
        stacked, single = (metavib.load(one.out).description.calibration for one in (mine, own))
        assert stacked.sampled == pytest.approx(single.sampled, abs=1e-4)
        assert stacked.mean == pytest.approx(single.mean, abs=1e-4)
        assert stacked.class_distance == pytest.approx(single.class_distance, rel=1e-3)


def test_no_image_is_no_answer(finished):
    predictor = metavib.load(finished.run)
    assert predictor([]) == predictor.predict([]) == []


@pytest.mark.parametrize(
    "pixels",
    [np.zeros((28, 28), np.uint8), np.zeros((1, 28, 28), np.float32), np.zeros((2, 28, 28), np.uint8)],
    ids=["flat", "float", "two channels"],
)
def test_pixels_that_no_file_gives_are_refused_by_predict(finished, pixels):
    with pytest.raises(UserError, match="not what the model takes"):
        metavib.load(finished.run).predict([pixels])


@pytest.mark.parametrize(
    ("settings", "words"), [({"mode": "median"}, "median"), ({"coverage": 0}, "coverage = 0")], ids=str
)
def test_unknown_ways_are_refused(finished, settings, words):
    with pytest.raises(UserError, match=words):
        metavib.load(finished.run, **settings)


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(UserError, match="nowhere"):
        metavib.load(tmp_path / "nowhere")


def test_no_flipped_bit_in_the_description_goes_unnoticed(finished_copy):
    path = finished_copy.run / "model" / "config.json"
    good = path.read_bytes()
    record = json.loads(good)
    with path.open("r+b", buffering=0) as file:
        for position in range(len(good)):
            flipped = bytearray(good)
            flipped[position] ^= 1 << (position % 8)
            with contextlib.suppress(ValueError):
                if json.loads(flipped) == record:  # the last of 17 digits may say the same number
                    continue
            os.pwrite(
                file.fileno(), flipped, 0
            )  # in place: to write a file anew takes longer than to read it
            with pytest.raises(UserError, match=r"config\.json"):
                description_of(finished_copy.run)
    with pytest.raises(UserError, match=r"config\.json"):
        metavib.load(finished_copy.run)  # which reads it in the same way
