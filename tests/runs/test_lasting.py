"""Records outlive versions: settings and measures are added, and runs go on, or are refused in one line."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from record_fixtures import GRID, IMAGES, digest

from metavib.algorithms import ALGORITHMS
from metavib.algorithms.erm import ERM
from metavib.algorithms.metavib import MetaVIB
from metavib.core.json_record import checksum
from metavib.core.settings import Settings, setting
from metavib.interfaces.cli.training import paper_table
from metavib.models import metrics
from metavib.models.measures import MEASURES
from metavib.models.metrics import Measure
from metavib.reports.paper.tables import PaperRow, PaperTable
from metavib.training import experiment, recipes
from metavib.training.optimizer import Training

pytestmark = pytest.mark.whole


@dataclasses.dataclass(frozen=True)
class LaterTraining(Training):
    """The settings of training in a version to come."""

    tremor: float = setting(0.0, "made up", minimum=0)


@dataclasses.dataclass(frozen=True)
class LaterERM(ERM.Config):
    """The settings of ERM in a version to come."""

    haste: int = setting(1, "made up", minimum=1)


@dataclasses.dataclass(frozen=True)
class LaterMetaVIB(MetaVIB.Config):
    """The settings of MetaVIB in a version to come."""

    doubt: str = setting("none", "made up", choices=("none", "some"))


@pytest.fixture
def settings_are_added(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """One more setting for training, one for ERM and one for MetaVIB."""

    def add() -> None:
        for module in (experiment, recipes):
            monkeypatch.setattr(module, "Training", LaterTraining)
        monkeypatch.setattr(ERM, "Config", LaterERM)
        monkeypatch.setattr(MetaVIB, "Config", LaterMetaVIB)

    return add


# --- settings are added -------------------------------------------------------------------------------------


def test_an_open_run_goes_on(metavib: Any, settings_are_added: Any, records: Any, here: list[str]) -> None:
    run = records("run-open")
    before = (run / "metrics.jsonl").read_text()
    settings_are_added()
    assert metavib("train", "--out", run, *here).status == 0
    assert (run / "metrics.jsonl").read_text().startswith(before)
    assert (run / "results.json").exists()


def test_an_open_stack_goes_on(metavib: Any, settings_are_added: Any, records: Any, here: list[str]) -> None:
    grid = records("grid")
    before = {path: path.read_text() for path in grid.glob("*/metrics.jsonl")}
    settings_are_added()
    status, _, err = metavib(*GRID, "--out", grid, *here)
    assert (status, err.count("is finished already")) == (0, 2), err
    assert all(path.read_text().startswith(text) for path, text in before.items())
    assert len(list(grid.glob("*/results.json"))) == 4


@pytest.mark.usefixtures("inline")
def test_the_trials_of_a_sweep_are_known(
    metavib: Any, settings_are_added: Any, records: Any, here: list[str], sweep_file: Path
) -> None:
    out = records("sweep-finished")
    before = digest(out / "cells")
    settings_are_added()
    assert metavib("sweep", sweep_file, "--out", out, *here).status == 0
    assert digest(out / "cells") == before
    half = records("sweep-open")
    places = {path.name for path in half.glob("cells/*")}
    assert metavib("sweep", sweep_file, "--out", half, *here).status == 0
    assert {path.name for path in half.glob("cells/*")} == places


def test_the_cells_of_a_table_are_known(
    metavib: Any, settings_are_added: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = PaperTable(
        "small", "tab:small", "", "rotated-digits", ("75",), (PaperRow("ERM", algorithm="erm"),)
    )
    monkeypatch.setattr(paper_table, "table_named", lambda name: table)
    words = ["reproduce", "small", "--preset", "demo", "--seeds", "1", "--steps", "2", "--device", "cpu"]
    words += ["--algorithms", "erm", "--set", "images_per_domain=10", "--set", "validations=1"]
    assert metavib(*words, "--out", tmp_path / "out").status == 0
    before = digest(tmp_path / "out")
    settings_are_added()
    status, _, err = metavib(*words, "--out", tmp_path / "out")
    assert status == 0
    assert "The run is finished already." in err
    assert {name: own for name, own in digest(tmp_path / "out").items() if "table" not in name} == {
        name: own for name, own in before.items() if "table" not in name
    }


def test_an_algorithm_of_ones_own_may_get_one_more_setting(
    metavib: Any, interrupted: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclasses.dataclass(frozen=True)
    class First(Settings):
        width: int = setting(3, "made up", minimum=1)

    @dataclasses.dataclass(frozen=True)
    class Second(First):
        depth: int = setting(2, "made up", minimum=1)

    class Mine(ERM):  # type: ignore[misc]
        Config = First  # type: ignore[assignment]

        def __init__(self, backbone: Any, classes: int, config: Any) -> None:
            super().__init__(backbone, classes, ERM.Config())

    monkeypatch.setitem(ALGORITHMS, "mine", Mine)
    command = ["train", folder, "--out", tmp_path / "run", "--algorithm", "mine", "--target", "sketch"]
    command += ["--seed", "1", "--steps", "5", "--backbone", "digits", "--weights", "none"]
    interrupted(*command, "--set", "images_per_domain=8", after=2)
    monkeypatch.setattr(Mine, "Config", Second)
    status, _, err = metavib(*command, "--set", "images_per_domain=8")
    assert status == 0, err
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 5


def test_where_settings_mean_something_else_a_run_does_not_go_on(
    refused: Any, records: Any, here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = records("run-open")
    before = digest(run)
    monkeypatch.setattr(Training, "VERSION", 2)
    line = refused("train", "--out", run, *here)
    assert "was begun by metavib 0.1.0, in which these settings mean something else. Go on with that" in line
    assert digest(run) == before


# --- measures are added -------------------------------------------------------------------------------------


def test_a_finished_run_lacks_a_measure_that_came_later_until_it_is_evaluated(
    metavib: Any, records: Any, here: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = records("run-finished")
    before = json.loads((run / "results.json").read_text())
    error = Measure(lambda scores: 1 - metrics.accuracy(scores), "error", "made up", higher_is_better=False)
    monkeypatch.setitem(MEASURES, "error", error)
    status, _, err = metavib("train", "--out", run, *here)
    assert status == 0, err
    assert "is finished already" in err
    status, _, err = metavib("report", run, "--out", tmp_path / "report.html", "--figure", "training", *here)
    assert (status, "damaged" in err) == (0, False), err
    assert json.loads((run / "results.json").read_text()) == before
    status, _, err = metavib("evaluate", run, *here)
    assert status == 0
    later = [name for name in MEASURES if name not in before["unseen"]]  # than the records, or made up here
    assert f"results.json is older than {', '.join(later)}: added." in err
    after = json.loads((run / "results.json").read_text())
    assert after["unseen"]["error"]["mean"] == pytest.approx(1 - before["unseen"]["accuracy"]["mean"])
    for name in later:
        del after["unseen"][name]
    assert after == before


def test_a_table_says_what_was_not_measured(metavib: Any, records: Any, here: list[str]) -> None:
    run = records("run-finished")
    results = json.loads((run / "results.json").read_text())
    del results["unseen"]["brier"]
    (run / "results.json").write_text(json.dumps(results))
    status, out, err = metavib("train", "--out", run, *here)
    assert status == 0, err
    assert "brier                    not measured" in out


# --- records that cannot be used ----------------------------------------------------------------------------


def changed(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def added(*within: str | int) -> Callable[[Path], None]:
    """A field or setting in this part of a record, which a version to come might write; with its checksum."""

    def change(path: Path) -> None:
        record = json.loads(path.read_text())
        has_checksum = record.pop("check", None) is not None
        part = record
        for name in within:
            part = part[name]
        part["tremor"] = 0.5
        path.write_text(json.dumps(record | ({"check": checksum(record)} if has_checksum else {})))

    return change


def tensor_added(path: Path) -> None:
    """A tensor of a kind that this version does not keep, in a checkpoint whose checksums are right."""
    tensors = safetensors.torch.load_file(path.with_suffix(".safetensors"))
    content = safetensors.torch.save(tensors | {"tremor/weight": torch.zeros(1)})
    path.with_suffix(".safetensors").write_bytes(content)
    record = json.loads(path.read_text()) | {"sha256": hashlib.sha256(content).hexdigest()}
    del record["check"]
    path.write_text(json.dumps(record | {"check": checksum(record)}))


NEWER = "was written by a newer version of metavib (format 9; this version reads up to "
OLDER = "was written by an older version of metavib (format 1; this version reads from 2"
UNKNOWN = (
    "'tremor', which this version of metavib does not know: it was made by a newer version. Upgrade metavib"
)
HALF = "It is damaged or half written: copy "


@pytest.mark.parametrize("command", ["train", "evaluate"])
@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("experiment.json", lambda path: changed(path, format=9), NEWER),
        ("experiment.json", added("experiment", "training"), f"has the setting {UNKNOWN}"),
        ("experiment.json", added("experiment"), f"has the value {UNKNOWN}"),
        ("experiment.json", added(), f"has the field {UNKNOWN}"),
        ("experiment.json", added("data", "pixel_range"), f"has the field {UNKNOWN}"),
        ("experiment.json", cut, HALF),
        ("experiment.json", lambda path: path.write_text(""), HALF),
        ("results.json", lambda path: changed(path, format=9), NEWER),
        ("results.json", cut, HALF),
        ("results.json", added(), f"has the field {UNKNOWN}"),
        ("results.json", added("unsure"), f"has the field {UNKNOWN}"),
        ("results.json", added("unseen", "accuracy"), f"has the field {UNKNOWN}"),
    ],
)
def test_a_run_is_refused_in_one_line(
    refused: Any, records: Any, here: list[str], command: str, file: str, change: Any, words: str
) -> None:
    run = records("run-finished")
    change(run / file)
    before = digest(run)
    line = refused(*(["train", "--out", run] if command == "train" else ["evaluate", run]), *here)
    assert words in line
    assert digest(run) == before


@pytest.mark.parametrize(
    ("name", "file", "change", "words"),
    [
        ("run-open", "checkpoints/00000063.json", lambda path: changed(path, format=9), NEWER),
        ("run-open", "checkpoints/00000063.json", lambda path: changed(path, format=1), OLDER),
        ("run-open", "checkpoints/00000063.json", cut, "Remove that folder to train from the start."),
        ("run-open", "checkpoints/00000063.safetensors", Path.unlink, "lacks a file. Remove that folder"),
        ("run-open", "checkpoints/00000063.json", added(), f"has the field {UNKNOWN}"),
        ("run-open", "checkpoints/00000063.json", added("values"), f"has the field {UNKNOWN}"),
        ("run-open", "checkpoints/00000063.json", added("values", "runs", 0), f"has the field {UNKNOWN}"),
        ("run-open", "checkpoints/00000063.json", added("values", "runs", 0, "valley"), UNKNOWN),
        (
            "run-open",
            "experiment.json",
            Path.unlink,
            "is there already and is not a run directory. Choose another",
        ),
    ],
)
def test_a_run_that_cannot_be_continued_is_left_as_it_is(
    refused: Any, records: Any, here: list[str], name: str, file: str, change: Any, words: str
) -> None:
    run = records(name)
    change(run / file)
    before = digest(run)
    dataset = ["/tmp/metavib-records/images", "--target", "art", "--seed", "1"]  # noqa: S108
    line = refused("train", *(dataset if file == "experiment.json" else []), "--out", run, *here)
    assert words in line
    assert digest(run) == before


def test_a_checkpoint_with_tensors_of_a_newer_version_is_left_as_it_is(
    metavib: Any, records: Any, here: list[str]
) -> None:
    run = records("run-open")
    tensor_added(run / "checkpoints" / "00000063.json")
    before = digest(run)
    status, _, err = metavib("train", "--out", run, *here)
    assert (status, f"has tensors of {UNKNOWN}" in err.splitlines()[-1]) == (2, True), err
    assert {name: own for name, own in digest(run).items() if name != ".lock"} == before


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("config.json", lambda path: changed(path, format=9), NEWER),
        ("config.json", lambda path: changed(path, format=0), "is damaged"),
        ("config.json", cut, HALF),
        ("config.json", Path.unlink, "is missing: "),
        ("config.json", added(), f"has the field {UNKNOWN}"),
        ("config.json", added("method"), f"has the setting {UNKNOWN}"),
        ("config.json", added("preprocessing"), f"has the field {UNKNOWN}"),
        ("config.json", added("preprocessing", "pixel_range"), f"has the field {UNKNOWN}"),
        ("config.json", added("calibration"), f"has the field {UNKNOWN}"),
        ("model.safetensors", cut, "is damaged (sha256 differs). Train or copy it again."),
        ("model.safetensors", Path.unlink, "Train or copy it again."),
    ],
)
def test_a_model_is_refused_in_one_line(
    refused: Any, records: Any, file: str, change: Any, words: str
) -> None:
    model = records("model")
    change(model / file)
    before = digest(model)
    assert words in refused("predict", model, next(IMAGES.rglob("*.png")))
    assert digest(model) == before


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("cells/{}/experiment.json", lambda path: changed(path, format=9), NEWER),
        ("cells/{}/experiment.json", cut, HALF),
        ("cells/{}/checkpoints/00000074.json", lambda path: changed(path, format=9), NEWER),
        ("sweep.json", lambda path: path.write_text('{"format": 9}'), NEWER),
        ("sweep.json", lambda path: path.write_text('{"format": 1, "file": {}, "tremor": 1}'), UNKNOWN),
        ("cells/{}/experiment.json", added(), UNKNOWN),
        ("cells/{}/checkpoints/00000074.json", added("values", "runs", 0), UNKNOWN),
        ("sweep.json", lambda path: path.write_text('{"for'), HALF),
    ],
)
def test_a_sweep_is_refused_in_one_line(
    refused: Any, records: Any, here: list[str], sweep_file: Path, file: str, change: Any, words: str
) -> None:
    out = records("sweep-open")
    change(out / file.format("cfc77503043a691e"))
    before = digest(out)
    assert words in refused("sweep", sweep_file, "--out", out, *here)
    assert digest(out) == before


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("images-photo-metavib-seed1/experiment.json", lambda path: changed(path, format=9), NEWER),
        (".stacks/a82d67b3c23ac82b/00000063.json", lambda path: changed(path, format=9), NEWER),
        (".stacks/a82d67b3c23ac82b/00000063.json", lambda path: changed(path, format=1), OLDER),
        (".stacks/a82d67b3c23ac82b/00000063.json", added("values", "runs", 1), f"has the field {UNKNOWN}"),
        ("images-art-metavib-seed0/results.json", added(), f"has the field {UNKNOWN}"),
    ],
)
def test_a_grid_is_refused_in_one_line(
    refused: Any, records: Any, here: list[str], file: str, change: Any, words: str
) -> None:
    grid = records("grid")
    change(grid / file)
    before = digest(grid)
    line = refused(*GRID, "--out", grid, *here, "--yes")
    assert words in line
    assert digest(grid) == before


def test_images_that_moved_are_named_by_the_folder_around_them(
    metavib: Any, refused: Any, records: Any, here: list[str]
) -> None:
    run = records("run-open")
    line = refused("train", "--out", run, "--device", "cpu")
    assert "there is no folder /tmp/metavib-records/images. If it was moved" in line
    weights = Path(here[1]) / "weights.safetensors"
    words = [word.replace("art,photo", "art") for word in GRID[4:] if word not in ("--seeds", "--batch", "2")]
    moved = ["train", Path(here[1]) / "images", "--weights", weights, *words]
    line = refused(*moved, "--seed", "1", "--out", run, "--device", "cpu")
    assert (
        f"holds another experiment (dataset '/tmp/metavib-records/images' against '{here[1]}/images'" in line
    )
    assert f"If it was moved: metavib train --out {run} --data FOLDER" in line
