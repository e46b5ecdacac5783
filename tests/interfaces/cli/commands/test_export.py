"""`metavib export`, and the example that runs what it wrote without torch and without metavib."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from places import PATIENCE, ROOT

import metavib as package

pytestmark = pytest.mark.whole

EXAMPLE = ROOT / "examples" / "onnx_predict.py"


@pytest.fixture(scope="module")
def exported(finished, tmp_path_factory):
    from metavib.interfaces.cli.main import main

    out = tmp_path_factory.mktemp("exported") / "deep" / "folder"
    assert main(["export", str(finished.run), "--format", "onnx", "-o", str(out)]) == 0
    return out


@pytest.fixture
def example(exported, tmp_path):
    """Runs the example where neither torch nor metavib can be imported."""
    (tmp_path / "bare").mkdir()
    for name in ("torch", "metavib", "torchvision"):
        (tmp_path / "bare" / f"{name}.py").write_text("raise ImportError('not here')\n")

    def call(*arguments):
        done = subprocess.run(
            [sys.executable, "-W", "error", EXAMPLE, exported, *map(str, arguments)],
            env={"PYTHONPATH": str(tmp_path / "bare")},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [line.split() for line in done.stdout.splitlines()]

    return call


def test_the_difference_is_printed(metavib, finished, tmp_path):
    status, out, err = metavib("export", finished.run, "--format", "torch-export", "-o", tmp_path / "out")
    assert (status, err) == (0, "")
    assert "mean.pt2" in out
    assert "largest difference to the model: " in out


def test_json_names_the_files_and_the_difference(metavib, finished, tmp_path):
    status, out, _ = metavib("export", finished.run / "model", "-o", tmp_path / "out", "--json")
    assert status == 0
    record = json.loads(out)
    assert [Path(name).name for name in record["files"]] == ["mean.onnx", "sampled.onnx", "onnx.json"]
    assert all(Path(name).is_file() for name in record["files"])
    assert 0 <= record["largest_difference"] <= 1e-4


def test_the_example_says_what_the_predictor_says(example, finished):
    images = sorted(finished.folder.glob("sketch/*/*.png"))
    predictor = package.load(finished.run)
    for line, answer in zip(example(*images), predictor(images), strict=True):
        assert line[1] == answer.label
        assert float(line[2]) == pytest.approx(answer.probability, abs=1e-4)
        assert float(line[4]) == pytest.approx(answer.entropy, abs=1e-4)
        assert (line[-1] == "unsure") is answer.unsure


def test_the_example_draws_by_its_seed(example, finished):
    image = next(finished.folder.rglob("*.png"))
    assert example(image, "--sampled", "--seed", 1) == example(image, "--sampled", "--seed", 1)
    assert example(image, "--sampled", "--seed", 1) != example(image, "--sampled", "--seed", 2)
    assert example(image, "--sampled", "--draws", 50)


def test_a_missing_model_and_an_unknown_format_are_named(refused, finished, tmp_path):
    assert "nowhere" in refused("export", tmp_path / "nowhere")
    assert "tflite" in refused("export", finished.run, "--format", "tflite", "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()
