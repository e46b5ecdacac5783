"""Records of earlier versions (`fixtures/README.md`) are continued, reported, evaluated, predicted with, served.

They name their images and weights by the folder in which they were made, which is not there any more: `--data`
says where both are now.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from record_fixtures import GRID, IMAGES, STEPS, digest

from metavib.models.directory import description_of
from metavib.runs.provenance import read_description
from metavib.training.run_directory import RunDirectory

pytestmark = pytest.mark.whole


def steps_of(run: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_an_open_run_goes_on_from_its_checkpoint(metavib: Any, records: Any, here: list[str]) -> None:
    run = records("run-open")
    before = (run / "metrics.jsonl").read_text()
    status, out, err = metavib("train", "--out", run, *here, "--json")
    assert status == 0, err
    assert (run / "metrics.jsonl").read_text().startswith(before)  # nothing was trained again
    assert steps_of(run) == list(range(2, STEPS + 1, 2))
    assert json.loads(out)["unseen"]["images"] == 8
    assert (run / "checkpoints" / "00000200.json").exists()


def test_a_finished_run_is_finished(metavib: Any, records: Any, here: list[str]) -> None:
    run = records("run-finished")
    before = digest(run)
    status, out, err = metavib("train", "--out", run, *here, "--json")
    assert status == 0, err
    assert "is finished already" in err
    assert json.loads(out)["unseen"] == json.loads((run / "results.json").read_text())["unseen"]
    assert digest(run) == before


def test_a_finished_run_is_evaluated(metavib: Any, records: Any, here: list[str]) -> None:
    run = records("run-finished")
    status, out, err = metavib("evaluate", run, *here, "--json")
    assert status == 0, err
    measured, recorded = json.loads(out)["measured"], json.loads((run / "results.json").read_text())["unseen"]
    assert measured["accuracy"]["mean"] == pytest.approx(recorded["accuracy"]["mean"])
    assert measured["nll"]["mean"] == pytest.approx(recorded["nll"]["mean"], rel=1e-3)


@pytest.mark.usefixtures("inline")
def test_a_sweep_goes_on(
    metavib: Any, records: Any, unpacked: Path, here: list[str], sweep_file: Path
) -> None:
    """Its finished trial is not trained again, its open one goes on, and the better one is measured."""
    out = records("sweep-open")
    finished = next(out.glob("cells/*/validation.json")).parent
    (open_one,) = (cell for cell in out.glob("cells/*") if cell != finished)
    before = digest(finished / "checkpoints"), (open_one / "metrics.jsonl").read_text()
    status, _, err = metavib("sweep", sweep_file, "--out", out, "--no-batch", *here)
    assert status == 0, err
    assert {path.name for path in out.glob("cells/*")} == {finished.name, open_one.name}
    assert digest(finished / "checkpoints") == before[0]
    assert (open_one / "metrics.jsonl").read_text().startswith(before[1])
    (now,), (then,) = (
        json.loads((place / "ranking.json").read_text())["ranking"]
        for place in (out, unpacked / "sweep-finished")
    )
    assert now["targets"]["art"]["chosen"][0]["settings"] == then["targets"]["art"]["chosen"][0]["settings"]
    assert now["mean"] == pytest.approx(then["mean"], abs=13)  # one image more or less, on other machines


@pytest.mark.usefixtures("inline")
def test_a_finished_sweep_is_read(
    metavib: Any, records: Any, unpacked: Path, here: list[str], sweep_file: Path
) -> None:
    out = records("sweep-finished")
    before = digest(out / "cells")
    status, text, err = metavib("sweep", sweep_file, "--out", out, *here, "--json")
    assert status == 0, err
    assert json.loads(text) == json.loads((unpacked / "sweep-finished" / "ranking.json").read_text())
    assert digest(out / "cells") == before


@pytest.mark.stacks
def test_a_grid_goes_on_as_the_stacks_that_it_had(metavib: Any, records: Any, here: list[str]) -> None:
    grid = records("grid")
    done = [path.parent for path in sorted(grid.glob("*/results.json"))]
    left = [path.parent for path in sorted(grid.glob("*/metrics.jsonl")) if path.parent not in done]
    assert (len(done), len(left)) == (2, 2)
    before = [digest(run) for run in done], [(run / "metrics.jsonl").read_text() for run in left]
    status, _, err = metavib(*GRID, "--out", grid, *here)
    assert status == 0, err
    assert err.count("is finished already") == 2
    assert err.count("2 runs are trained as one program") == 1
    assert [digest(run) for run in done] == before[0]
    for run, log in zip(left, before[1], strict=True):
        assert (run / "metrics.jsonl").read_text().startswith(log)
        assert steps_of(run)[-1] == STEPS
        assert (run / "results.json").exists()
    assert not (grid / ".stacks").exists()


@pytest.mark.whole
def test_all_of_them_are_reported(metavib: Any, unpacked: Path, here: list[str], tmp_path: Path) -> None:
    status, _, err = metavib("report", unpacked, "--out", tmp_path / "report.html", *here, "--json")
    assert status == 0, err
    page = (tmp_path / "report.html").read_text()
    assert "MetaVIB" in page
    assert "damaged" not in err
    assert err.count("is not finished") == 6  # the open run, two of the grid, three trials


@pytest.mark.parametrize("name", ["model", "run-finished"])
def test_a_model_predicts(metavib: Any, unpacked: Path, name: str) -> None:
    images = sorted((IMAGES / "photo").rglob("*.png"))
    status, out, err = metavib("predict", unpacked / name, *images, "--device", "cpu", "--json")
    assert status == 0, err
    answers = [json.loads(line) for line in out.splitlines()]
    assert {label for one in answers for label in one["probabilities"]} == {"left", "right"}
    assert len(answers) == len(images)


def test_a_frozen_run_of_another_image_size_is_finished_and_evaluated(
    metavib: Any, frozen_records: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(frozen_records / "run", tmp_path / "run"))
    before, here = digest(run), ["--data", frozen_records, "--device", "cpu", "--json"]
    status, _, err = metavib("train", "--out", run, *here)
    assert status == 0, err
    assert "is finished already" in err
    assert digest(run) == before
    status, out, err = metavib("evaluate", run, *here)
    assert status == 0, err
    recorded = json.loads((run / "results.json").read_text())["unseen"]
    assert json.loads(out)["measured"]["accuracy"]["mean"] == pytest.approx(recorded["accuracy"]["mean"])
    experiment = read_description(RunDirectory(run)).experiment
    assert (experiment.training.frozen, experiment.image_size) == (True, 64)
    choice = json.loads((run / "choice.json").read_text())
    assert choice["chosen"] == experiment.identity()
    assert [one["settings"] for one in choice["candidates"]] == [
        {"training.learning_rate": 0.001},
        {"training.learning_rate": 0.01},
    ]


def test_a_calibrated_model_answers_by_its_calibration(metavib: Any, frozen_records: Path) -> None:
    across = description_of(frozen_records / "run").domain_calibration
    assert across is not None
    assert set(across.left_out) == {"art", "cartoon", "sketch"}
    images = sorted((frozen_records / "images" / "photo").rglob("*.png"))
    words = ["--coverage", "90%", "--sets", "90%", "--device", "cpu", "--json"]
    status, out, err = metavib("predict", frozen_records / "run", *images, *words)
    assert status == 0, err
    answers = [json.loads(line) for line in out.splitlines()]
    assert len(answers) == len(images)
    assert all(one["label"] in one["labels"] and one["foreign"] in (True, False) for one in answers)


def test_a_model_is_served(unpacked: Path, start: Callable[..., Any]) -> None:
    from metavib.serving.predictor import load

    server = start(predictors={"mean": load(unpacked / "model", device="cpu")})
    reply = server.send(next(IMAGES.rglob("*.png")).read_bytes())
    assert reply.status == 200
    assert reply.json["predictions"][0]["label"] in ("left", "right")
