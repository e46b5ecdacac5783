"""`metavib forecast`: what to expect on a folder without labels."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def calibrated(metavib, finished_copy):
    assert metavib("calibrate", finished_copy.run)[0] == 0
    return finished_copy


def test_an_accuracy_with_an_interval_and_a_page(metavib, calibrated, tmp_path):
    folder = shutil.copytree(calibrated.folder / "sketch", tmp_path / "new <b>")
    (folder / "broken.png").write_bytes(b"no image")
    page = tmp_path / "page.html"
    status, out, err = metavib("forecast", calibrated.run, folder, "--json", "--page", page)
    assert status == 0, err
    told = json.loads(out)
    assert told["images"] == 8
    assert told["unreadable"] == 1
    assert 0 <= told["low"] <= told["accuracy"] <= told["high"] <= 1
    chances = [one["probability"] for one in told["doubtful"]]
    assert chances == sorted(chances)
    assert len(chances) == 8
    text = page.read_text()
    assert text.count("<li>") == 8
    assert "<b>" not in text


def test_a_forecast_is_the_mean_of_the_probabilities(metavib, calibrated):
    _, out, _ = metavib("forecast", calibrated.run, calibrated.folder / "sketch", "--json")
    _, answers, _ = metavib("predict", calibrated.run, calibrated.folder / "sketch", "--json")
    probabilities = [json.loads(line)["probability"] for line in answers.splitlines()]
    assert json.loads(out)["accuracy"] == pytest.approx(sum(probabilities) / len(probabilities), abs=1e-5)


def test_what_cannot_be_forecast_is_refused(refused, finished, calibrated, tmp_path):
    assert "Run metavib calibrate" in refused("forecast", finished.run, finished.folder)
    assert "there is no folder" in refused("forecast", calibrated.run, tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    assert "holds no images" in refused("forecast", calibrated.run, tmp_path / "empty")
    (tmp_path / "empty" / "bad.png").write_bytes(b"bad")
    assert "none of the 1 files could be read" in refused("forecast", calibrated.run, tmp_path / "empty")


def test_a_folder_of_nothing_is_told(metavib, calibrated, tmp_path, monkeypatch):
    monkeypatch.setattr("metavib.serving.forecast.MOSTLY", -1.0)  # whatever share of it is foreign
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "blank.png")
    status, out, _ = metavib("forecast", calibrated.run, tmp_path)
    assert status == 0
    assert "the forecast means little" in out
