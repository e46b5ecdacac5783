"""A folder of 12-bit images in 16-bit files, on every way from the folder to an answer."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import QUICK
from deep_files import in_colour, png, saved
from PIL import Image
from places import ROOT
from serving_fixtures import form

import metavib as package
from metavib.core.errors import UserError
from metavib.core.json_record import checksum
from metavib.interfaces.cli.main import main
from metavib.serving.export import export

pytestmark = pytest.mark.whole

RANGE = {"depth": "16-bit", "low": 0.0, "high": 4095.0}
EXAMPLE = ROOT / "examples" / "onnx_predict.py"


def picture(seed: int, position: int = 0) -> np.ndarray:
    """Noise of 12 bits, brighter on the side of its class."""
    values = np.random.default_rng(seed).integers(0, 2048, (28, 28), dtype=np.uint16)
    values[:, 14 * position :][:, :14] += 2047
    return values


def make(root: Path) -> Path:
    """Four domains, two classes; half of the files are in colour, and all are 16-bit."""
    for first, domain in enumerate(("art", "cartoon", "photo", "sketch")):
        for position, label in enumerate(("cat", "dog")):
            (root / domain / label).mkdir(parents=True)
            for number in range(4):
                values = picture(100 * first + 10 * position + number, position)
                data = png(in_colour(values)) if number % 2 else png(values)
                (root / domain / label / f"{number}.png").write_bytes(data)
    return root


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """A finished run on 16-bit files."""
    root = tmp_path_factory.mktemp("deep")
    folder = make(root / "images")
    # Twice as bright as any source image.
    (folder / "sketch" / "cat" / "0.png").write_bytes(png(2 * picture(5)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAVIB_CACHE", str(root / "cache"))
        said = io.StringIO()
        patch.setattr(sys, "stderr", said)
        assert main(["train", str(folder), "--out", str(root / "run"), *QUICK]) == 0
    return SimpleNamespace(run=root / "run", folder=folder, said=said.getvalue())


@pytest.fixture
def predictor(deep):
    return package.load(deep.run)


def test_data_says_the_range(metavib, deep):
    status, out, err = metavib("data", deep.folder, "--json")
    assert status == 0
    report = json.loads(out)
    assert report["pixel_range"]["depth"] == "16-bit"
    assert report["pixel_range"]["high"] == 8191  # with the domain that was held out above
    assert report["extremes"]["high"] > 4095
    assert "16-bit images with values 0 to 8,191" in err


def test_train_says_the_range_of_its_sources_and_what_was_clipped(deep):
    assert "16-bit images with values 0 to 4,095: these become 0 to 255" in deep.said
    assert "1 image(s) of 'sketch' have values beyond the range: they are clipped" in deep.said


def test_the_range_is_kept_with_the_run_and_the_model(deep):
    assert json.loads((deep.run / "experiment.json").read_text())["data"]["pixel_range"] == RANGE
    results = json.loads((deep.run / "results.json").read_text())
    assert results["data"]["pixel_range"] == RANGE
    assert results["data"]["target"]["clipped_images"] == 1
    assert (
        json.loads((deep.run / "model" / "config.json").read_text())["preprocessing"]["pixel_range"] == RANGE
    )
    assert "- image files: 16-bit images with values 0 to 4,095" in (deep.run / "model/README.md").read_text()


def test_runs_on_8_bit_files_say_and_scale_nothing(metavib, finished):
    config = json.loads((finished.run / "model" / "config.json").read_text())
    assert config["preprocessing"]["pixel_range"]["depth"] == "8-bit"
    _, _, err = metavib("data", finished.folder)
    assert "values:" not in err
    assert "image files:" not in (finished.run / "model/README.md").read_text()


def test_a_run_goes_on_only_with_the_range_that_it_began_with(metavib, deep, training, interrupted, tmp_path):
    arguments = training(data=deep.folder)
    assert interrupted(*arguments, after=1).status == 130
    place = tmp_path / "run" / "experiment.json"
    record = json.loads(place.read_text())
    del record["data"]["pixel_range"]  # as a version wrote it that divided by 65,535
    place.write_text(json.dumps(record))
    status, _, err = metavib(*arguments)
    assert status == 2
    assert "another range of pixel values" in err.splitlines()[-1]


def test_predict_scales_as_training_did(metavib, deep, predictor, tmp_path):
    path = write(tmp_path / "x.png", png(picture(7)))
    expected = np.rint(picture(7) * (255 / 4095))
    assert np.array_equal(predictor.open(path)[0], expected)
    status, out, err = metavib("predict", deep.run, path, "--json")
    assert status == 0
    assert "clipped" not in err
    (answer,) = predictor(path)
    assert json.loads(out)["probabilities"] == pytest.approx(answer.probabilities)


def test_predict_clips_and_counts_what_lies_beyond(metavib, deep, tmp_path):
    bright, usual = write(tmp_path / "b.png", png(picture(7) * 3)), write(tmp_path / "u.png", png(picture(8)))
    status, _, err = metavib("predict", deep.run, bright, usual, bright)
    assert status == 0
    assert "2 of 3 file(s) have values beyond those of the training images (16-bit images with" in err


def test_predict_refuses_files_of_another_depth_in_one_line_each(metavib, deep, finished, tmp_path):
    shallow, rich = write(tmp_path / "s.png", saved(np.zeros((9, 9), np.uint8))), tmp_path / "r.png"
    write(rich, png(in_colour(picture(1))))
    status, out, err = metavib("predict", deep.run, shallow)
    assert (status, out) == (1, "")
    assert f"{shallow}: is 8-bit, but the model takes 16-bit images with values 0 to 4,095" in err
    status, out, err = metavib("predict", finished.run, rich)
    assert (status, out) == (1, "")
    assert f"{rich}: is 16-bit, but the model takes 8-bit images" in err


def test_the_server_scales_refuses_and_counts(start, deep, predictor, image):
    server = start(predictors={"sampled": package.load(deep.run, device="cpu")})
    reply = server.send(png(picture(7)))
    assert reply.status == 200
    (expected,) = predictor.predict([predictor.decode(png(picture(7)), "x")])
    assert reply.json["predictions"][0]["probabilities"] == pytest.approx(expected.probabilities, abs=1e-6)
    refused = server.send(image())
    assert refused.status == 422
    assert "is 8-bit, but the model takes 16-bit images" in refused.json["error"]
    several = server.send(
        *form(("a.png", png(picture(7))), ("b.png", image()), ("c.png", png(picture(7) * 3)))
    )
    assert [answer["image"] for answer in several.json["predictions"]] == [0, 2]
    assert "metavib_clipped_images 1.0" in server.ask("GET", "/metrics").body.decode()


def test_a_server_of_an_8_bit_model_refuses_deep_files(running):
    reply = running.send(png(picture(7)))
    assert reply.status == 422
    assert "is 16-bit, but the model takes 8-bit images" in reply.json["error"]
    assert "depth" in json.dumps(reply.json)


def test_python_takes_files_pillow_images_and_arrays_of_either_kind(deep, predictor, tmp_path):
    path = write(tmp_path / "x.png", png(picture(7)))
    (expected,) = predictor(path)
    values = picture(7)
    with Image.open(path) as opened:
        given = [
            opened,
            opened.convert("I"),
            values,
            values.astype(np.int64),
            torch.from_numpy(values.astype(int)),
        ]
        given += [np.rint(values * (255 / 4095)).astype(np.uint8)]  # scaled already
        for one in given:
            assert predictor(one) == [expected]
    assert predictor.clipped == 0
    predictor(values * 3)
    assert predictor.clipped == 1


def test_python_refuses_what_would_be_misread(deep, predictor, tmp_path):
    with pytest.raises(UserError, match="is 8-bit, but the model takes 16-bit"):
        predictor(Image.new("L", (28, 28)))
    with (
        Image.open(write(tmp_path / "x.png", png(in_colour(picture(1))))) as opened,
        pytest.raises(UserError, match="give the path of its file"),
    ):
        predictor(opened)


def test_an_export_says_the_range(deep, tmp_path):
    export(deep.run, "onnx", tmp_path / "out")
    facts = json.loads((tmp_path / "out" / "onnx.json").read_text())
    described = facts["image"]["pixel_range"]
    assert {name: described[name] for name in RANGE} == RANGE
    path = write(tmp_path / "x.png", png(picture(7)))
    command = [sys.executable, str(EXAMPLE), str(tmp_path / "out"), str(path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    (expected,) = package.load(deep.run, mode="mean")(path)
    assert answer[1] == expected.label
    assert float(answer[2]) == pytest.approx(expected.probability, abs=2e-4)


def test_evaluate_reads_by_the_range_of_the_model(metavib, deep):
    status, out, err = metavib("evaluate", deep.run, "--json")
    assert status == 0
    measured = json.loads(out)
    results = json.loads((deep.run / "results.json").read_text())
    assert measured["measured"]["accuracy"] == results["unseen"]["accuracy"]
    assert measured["data"]["target"]["clipped_images"] == 1
    assert "1 image(s) of 'sketch' have values beyond the range" in err


def test_a_model_without_a_range_reads_as_before(deep, finished, tmp_path):
    for run in (deep.run, finished.run):
        folder = shutil.copytree(run / "model", tmp_path / run.parent.name)
        record = json.loads((folder / "config.json").read_text())
        del record["preprocessing"]["pixel_range"], record["check"]
        (folder / "config.json").write_text(json.dumps(record | {"check": checksum(record)}))
        older = package.load(folder)
        assert np.array_equal(older.decode(png(picture(7)), "x")[0], np.rint(picture(7) * (255 / 65535)))
        shallow = saved(np.full((28, 28), 77, np.uint8))
        assert (older.decode(shallow, "x") == 77).all()


def test_a_model_with_a_damaged_range_is_refused(refused, deep, tmp_path):
    folder = shutil.copytree(deep.run / "model", tmp_path / "model")
    record = json.loads((folder / "config.json").read_text())
    record["preprocessing"]["pixel_range"]["high"] = 0.0
    del record["check"]
    (folder / "config.json").write_text(json.dumps(record | {"check": checksum(record)}))
    assert "pixel_range" in refused("predict", folder, deep.folder)


@pytest.mark.parametrize("flags", [[], ["--skip-bad"]])
def test_files_of_different_bit_depth_are_one_line(refused, training, folder, tmp_path, flags):
    write(folder / "photo" / "cat" / "3.png", png(picture(1)))
    line = refused(*training(*flags))
    assert "art/cat/0.png is 8-bit, photo/cat/3.png is 16-bit" in line
    assert not (tmp_path / "run").exists() or not any((tmp_path / "run").iterdir())


def test_a_target_of_another_depth_costs_no_training(metavib, training, folder, tmp_path):
    before = (folder / "sketch" / "cat" / "3.png").read_bytes()
    write(folder / "sketch" / "cat" / "3.png", png(picture(1)))
    status, _, err = metavib(*training())
    assert status == 2
    assert "sketch/cat/3.png: is 16-bit, but the model takes 8-bit images" in err.splitlines()[-1]
    model = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    write(folder / "sketch" / "cat" / "3.png", before)
    assert metavib(*training()).status == 0
    assert (tmp_path / "run" / "model" / "model.safetensors").read_bytes() == model
