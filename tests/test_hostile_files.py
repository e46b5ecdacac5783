"""Runs and models that somebody else made to do harm: every command that reads them ends at once, with one line.

Files that are pipes, devices, endless or links out of their directory; models whose answers are not finite.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from forging import rewrite
from PIL import Image
from torch import Tensor

import metavib
from metavib.core.errors import UserError

pytestmark = pytest.mark.chaos

Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def replaced(path: Path, kind: str) -> None:
    """Put something else in the place of a file."""
    content = path.read_bytes() if path.is_file() else b"{}"
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "link out":
        elsewhere = path.parents[2] / f"elsewhere-{path.name}"
        elsewhere.write_bytes(content)
        path.symlink_to(elsewhere)
    else:
        with path.open("wb") as file:
            file.truncate(1 << 42)  # a hole of four terabytes


KINDS = ["pipe", "device", "link out", "endless"]
SAID = {
    "pipe": "not a regular file",
    "device": "not a regular file",
    "link out": "leads out of",
    "endless": "too large",
}


def image_of(finished: Any) -> Path:
    """One that a model can answer."""
    return finished.folder / "photo" / "cat" / "0.png"


# --- special files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_model_of_special_files_is_refused_by_every_command(
    refused: Callable[..., str], finished_copy: Any, tmp_path: Path, name: str, kind: str
) -> None:
    replaced(finished_copy.run / "model" / name, kind)
    calls = [
        ("predict", finished_copy.run, image_of(finished_copy)),
        ("predict", finished_copy.run / "model", image_of(finished_copy)),
        ("evaluate", finished_copy.run),
        ("export", finished_copy.run, "--format", "torch-export", "-o", tmp_path / "exported"),
        ("serve", finished_copy.run, "--port", "0"),
    ]
    for call in calls:
        assert SAID[kind] in refused(*call)
    if name == "config.json":
        assert SAID[kind] in refused("describe", finished_copy.run / "model")
    with pytest.raises(UserError, match=SAID[kind]):
        metavib.load(finished_copy.run)


@pytest.mark.parametrize("kind", KINDS)
def test_records_of_a_run_that_are_special_files_are_refused(
    refused: Callable[..., str], finished_copy: Any, tmp_path: Path, kind: str
) -> None:
    replaced(finished_copy.run / "results.json", kind)
    assert SAID[kind] in refused("describe", finished_copy.run)
    assert SAID[kind] in refused("train", "--out", finished_copy.run)
    assert SAID[kind] in refused("report", finished_copy.run, "-o", tmp_path / "page.html")
    replaced(finished_copy.run / "experiment.json", kind)
    for call in (("evaluate",), ("describe",), ("train", "--out")):
        assert SAID[kind] in refused(*call, finished_copy.run)


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_that_is_a_special_file_is_refused(
    metavib: Callable[..., Any],
    interrupted: Callable[..., Any],
    training: Callable[..., list[str]],
    tmp_path: Path,
    kind: str,
) -> None:
    interrupted(*training(), after=2)
    replaced(tmp_path / "run" / "metrics.jsonl", kind)
    status, _, err = metavib(*training())
    assert status == 2
    assert SAID[kind] in err.splitlines()[-1]
    assert "Traceback" not in err


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_checkpoints_that_are_special_files_are_refused(
    metavib: Callable[..., Any],
    interrupted: Callable[..., Any],
    training: Callable[..., list[str]],
    tmp_path: Path,
    suffix: str,
    kind: str,
) -> None:
    interrupted(*training(), after=2)
    for path in (tmp_path / "run" / "checkpoints").glob(f"*{suffix}"):
        replaced(path, kind)
    status, _, err = metavib(*training())
    assert status == 2
    assert SAID[kind] in err.splitlines()[-1]
    assert "Traceback" not in err


def test_checkpoints_that_lie_elsewhere_are_neither_read_nor_removed(
    refused: Callable[..., str],
    interrupted: Callable[..., Any],
    training: Callable[..., list[str]],
    tmp_path: Path,
) -> None:
    interrupted(*training(), after=2)
    (tmp_path / "run" / "checkpoints").rename(tmp_path / "mine")
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "mine")
    before = {path.name: path.read_bytes() for path in (tmp_path / "mine").iterdir()}
    assert "leads out of" in refused(*training())
    assert {path.name: path.read_bytes() for path in (tmp_path / "mine").iterdir()} == before


@pytest.mark.parametrize("name", ["checkpoints", "model"])
def test_nothing_is_written_into_a_folder_that_lies_elsewhere(
    refused: Callable[..., str],
    interrupted: Callable[..., Any],
    training: Callable[..., list[str]],
    tmp_path: Path,
    name: str,
) -> None:
    interrupted(*training(), after=2)
    if (tmp_path / "run" / name).exists():
        shutil.rmtree(tmp_path / "run" / name)
    (tmp_path / "mine").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path / "mine")
    assert "leads out of" in refused(*training())
    assert not list((tmp_path / "mine").iterdir())


@pytest.mark.parametrize("kind", ["pipe", "device", "endless"])
def test_files_that_the_user_names_must_be_regular_too(
    refused: Callable[..., str], finished_copy: Any, tmp_path: Path, kind: str
) -> None:
    for name in ("config.yaml", "config.json", "data.csv", "data.jsonl", "weights.pth", "w.safetensors"):
        replaced(tmp_path / name, kind)
    out = tmp_path / "new"
    for name in ("config.yaml", "config.json"):
        assert SAID[kind] in refused("train", "--config", tmp_path / name, "--out", out)
    assert SAID[kind] in refused("sweep", tmp_path / "config.yaml", "--out", out)
    for name in ("data.csv", "data.jsonl"):
        assert refused("data", tmp_path / name)
    for name in ("weights.pth", "w.safetensors"):
        assert refused(*finished_copy.command, "--out", out, "--weights", tmp_path / name)


def test_a_lost_log_is_told_of_when_a_run_goes_on(
    metavib: Callable[..., Any],
    interrupted: Callable[..., Any],
    training: Callable[..., list[str]],
    tmp_path: Path,
) -> None:
    interrupted(*training(), after=2)
    log = tmp_path / "run" / "metrics.jsonl"
    whole = log.read_text()
    log.unlink()
    status, _, err = metavib(*training())
    assert status == 0
    assert "metrics.jsonl has lost 2 of 2 records up to step 2" in err
    interrupted(*training(out=tmp_path / "other"), after=2)
    (tmp_path / "other" / "metrics.jsonl").write_text(whole.splitlines(keepends=True)[0])
    assert "has lost 1 of 2" in metavib(*training(out=tmp_path / "other")).err
    interrupted(*training(out=tmp_path / "third"), after=2)
    assert "has lost" not in metavib(*training(out=tmp_path / "third")).err


# --- model cards ------------------------------------------------------------------------------------------


def test_a_card_that_is_a_link_is_left_out_and_that_is_said(
    finished_copy: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "secret").write_text("my key")
    card = finished_copy.run / "model" / "README.md"
    card.unlink()
    card.symlink_to(tmp_path / "secret")
    predictor = metavib.load(finished_copy.run)
    assert predictor.card == ""
    assert "README.md is left out: a link leads out of" in capsys.readouterr().err
    predictor.save_pretrained(tmp_path / "saved")
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    predictor.save_pretrained(finished_copy.run / "model")
    assert (tmp_path / "secret").read_text() == "my key"


@pytest.mark.parametrize("kind", ["pipe", "device", "endless"])
def test_a_card_that_is_a_special_file_is_left_out(finished_copy: Any, kind: str) -> None:
    replaced(finished_copy.run / "model" / "README.md", kind)
    assert metavib.load(finished_copy.run).card == ""


# --- poisoned models --------------------------------------------------------------------------------------


def poison(model: Path, change: Change) -> None:
    """Change the weights, and make all checksums right again."""
    tensors = change(safetensors.torch.load_file(model / "model.safetensors"))
    content = safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()})
    (model / "model.safetensors").write_bytes(content)
    rewrite(model / "config.json", lambda record: record | {"sha256": hashlib.sha256(content).hexdigest()})


def one_nan(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """In one weight of the network."""
    name = next(name for name in tensors if name.startswith("backbone."))
    tensors[name].view(-1)[0] = torch.nan
    return tensors


POISONS: dict[str, tuple[Change, str]] = {
    "one NaN": (one_nan, "not finite"),
    "huge": (lambda tensors: {name: torch.full_like(t, 1e38) for name, t in tensors.items()}, "not finite"),
    "zero": (
        lambda tensors: {name: torch.zeros_like(t) for name, t in tensors.items()},
        "not finite|same answer",
    ),
    "whole numbers": (lambda tensors: {name: t.long() for name, t in tensors.items()}, "int64 where floats"),
    "complex": (lambda tensors: {name: t.to(torch.complex64) for name, t in tensors.items()}, "complex64"),
}


@pytest.mark.parametrize("how", POISONS)
def test_a_poisoned_model_gets_no_answer_by_any_command(
    refused: Callable[..., str], finished_copy: Any, tmp_path: Path, how: str
) -> None:
    change, said = POISONS[how]
    poison(finished_copy.run / "model", change)
    calls = [
        ("predict", finished_copy.run, image_of(finished_copy)),
        ("serve", finished_copy.run, "--port", "0"),
        ("evaluate", finished_copy.run),
        ("export", finished_copy.run, "--format", "torch-export", "-o", tmp_path / "exported"),
    ]
    for call in calls:
        assert any(reason in refused(*call) for reason in said.split("|"))
    assert not (tmp_path / "exported").exists()
    with pytest.raises(UserError, match=said):
        metavib.load(finished_copy.run)


def test_a_report_names_the_poisoned_model_and_does_without_its_answers(
    metavib: Callable[..., Any], finished_copy: Any, tmp_path: Path
) -> None:
    poison(finished_copy.run / "model", one_nan)
    status, _, err = metavib("report", finished_copy.run, "-o", tmp_path / "page.html")
    assert status == 0
    assert "not asked" in err
    assert "not finite" in err


@pytest.fixture
def treacherous(finished_copy: Any) -> Any:
    """A predictor whose probes were finite, but whose answers are not, for white images."""
    predictor = metavib.load(finished_copy.run, device="cpu")
    sound = predictor.algorithm.embed

    def embed(images: Tensor) -> Tensor:
        white = images.amin(dim=(1, 2, 3), keepdim=False) > 0.9
        return torch.where(white.unsqueeze(1), torch.nan, sound(images))

    predictor.algorithm.embed = embed  # type: ignore[method-assign]
    return predictor


def test_an_answer_that_is_not_finite_is_an_error_and_no_label(treacherous: Any) -> None:
    white, black = (np.full((28, 28), shade, dtype=np.uint8) for shade in (255, 0))
    assert treacherous([black])[0].label in treacherous.classes
    with pytest.raises(UserError, match="not finite"):
        treacherous([black, white])


def test_predict_ends_with_status_2_where_an_answer_is_not_finite(
    refused: Callable[..., str], treacherous: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from metavib.serving import predictor

    monkeypatch.setattr(predictor, "load", lambda *_, **__: treacherous)
    Image.new("L", (28, 28), 255).save(tmp_path / "white.png")
    assert "not finite" in refused("predict", "model", tmp_path / "white.png")


def test_the_server_answers_422_for_that_image_and_the_others_as_ever(
    treacherous: Any, start: Callable[..., Any]
) -> None:
    def png(shade: int) -> bytes:
        file = io.BytesIO()
        Image.new("L", (28, 28), shade).save(file, "PNG")
        return file.getvalue()

    server = start(predictors={"sampled": treacherous})
    assert server.send(png(0)).status == 200
    reply = server.send(png(255))
    assert reply.status == 422
    assert "not finite" in reply.json["error"]
    assert reply.json["what_to_do"]
    parts = b"".join(
        b'--x\r\nContent-Disposition: form-data; name="image"; filename="%d.png"\r\n\r\n%s\r\n'
        % (shade, png(shade))
        for shade in (0, 255)
    )
    reply = server.send(parts + b"--x--\r\n", "multipart/form-data; boundary=x")
    assert reply.status == 200
    assert [answer["name"] for answer in reply.json["predictions"]] == ["0.png"]
    assert [(problem["name"], problem["status"]) for problem in reply.json["problems"]] == [("255.png", 422)]
