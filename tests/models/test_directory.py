"""Model directories: what is written, and what is read back. Damaged ones are in `test_bad_input.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from forging import rewrite
from small_models import built, described

from metavib.algorithms import ALGORITHMS
from metavib.algorithms.base import Algorithm
from metavib.core.errors import UserError
from metavib.models.directory import load_model, save_model

CPU = torch.device("cpu")


def saved(folder: Path, name: str, **changes: Any) -> Algorithm:
    algorithm = built(name)
    save_model(folder, algorithm, described(name, **changes))
    return algorithm


@pytest.mark.parametrize("name", ALGORITHMS)
@torch.no_grad()
def test_a_model_that_is_read_back_predicts_the_same(name: str, tmp_path: Path) -> None:
    algorithm = saved(tmp_path, name)
    loaded, description = load_model(tmp_path, CPU)
    assert (description.algorithm, description.classes) == (name, ("cat", "dog"))
    images = torch.rand(3, 1, 28, 28)
    answers = [
        own.predictive(own.embed(images), None).log_probabilities for own in (algorithm.eval(), loaded)
    ]
    torch.testing.assert_close(*answers)


def test_what_only_training_needs_is_not_written(tmp_path: Path) -> None:
    algorithm = saved(tmp_path, "epi_fcr")
    written = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert algorithm.state_dict().keys() - written.keys() == {
        name for name in algorithm.state_dict() if name.startswith("partner_")
    }
    assert any(name.startswith("partner_backbones.") for name in algorithm.state_dict())


def test_a_model_with_all_that_training_needed_is_read_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(ALGORITHMS["crossgrad"], "TRAINING_ONLY", ())
        algorithm = saved(tmp_path, "crossgrad")
    loaded, _ = load_model(tmp_path, CPU)
    weight = "domain_classifier.weight"
    assert loaded.state_dict()[weight].equal(algorithm.state_dict()[weight])


def test_a_model_that_lacks_what_predictions_need_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(ALGORITHMS["erm"], "TRAINING_ONLY", ("classifier.",))
        saved(tmp_path, "erm")
    with pytest.raises(UserError, match=r"missing.*classifier"):
        load_model(tmp_path, CPU)


def test_a_model_with_weights_of_another_algorithm_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, "metavib", algorithm="erm")
    with pytest.raises(UserError, match="unknown"):
        load_model(tmp_path, CPU)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"classes": ("cat", "cat")}, "two classes have the name 'cat'"),
        ({"classes": ()}, "no classes"),
        ({"classes": ("cat", "d\ud800g")}, "surrogates not allowed"),
        ({"unseen_domain": "\udfff"}, "surrogates not allowed"),
        ({"backbone": "telescope"}, "unknown backbone"),
    ],
)
def test_a_description_that_no_answer_could_be_made_from_is_refused(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    saved(tmp_path, "erm", **change)
    with pytest.raises(UserError, match=f"does not describe a model.*{said}"):
        load_model(tmp_path, CPU)


@pytest.mark.parametrize(
    "added", [{"aura": 1}, {"examples": {"images": 1, "sha256": "0", "aura": 1}}], ids=["model", "examples"]
)
def test_a_field_of_a_newer_version_is_named(tmp_path: Path, added: dict[str, Any]) -> None:
    saved(tmp_path, "erm")
    rewrite(tmp_path / "config.json", lambda record: record | added)
    said = r"config\.json has the field 'aura', which .* was made by a newer version. Upgrade metavib"
    with pytest.raises(UserError, match=said):
        load_model(tmp_path, CPU)


def test_a_file_that_is_larger_than_its_weights_can_be_is_not_read(tmp_path: Path) -> None:
    saved(tmp_path, "erm")
    with (tmp_path / "model.safetensors").open("ab") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="too large"):
        load_model(tmp_path, CPU)


# --- links ------------------------------------------------------------------------------------------------


def test_a_model_that_is_a_link_out_of_its_run_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "elsewhere", "erm")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="leads out of"):
        load_model(tmp_path / "run", CPU)


def test_a_link_that_the_user_names_is_followed_and_so_is_one_within_the_run(tmp_path: Path) -> None:
    saved(tmp_path / "run" / "model-1", "erm")
    (tmp_path / "run" / "model").symlink_to("model-1")
    (tmp_path / "alias").symlink_to(tmp_path / "run")
    for path in (tmp_path / "run", tmp_path / "alias", tmp_path / "alias" / "model"):
        assert load_model(path, CPU)[1].algorithm == "erm"


def test_a_model_in_the_cache_of_the_hub_is_links_into_its_blobs(tmp_path: Path) -> None:
    store = tmp_path / "models--someone--digits"
    snapshot = store / "snapshots" / "0123"
    saved(store / "blobs", "erm")
    snapshot.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    assert load_model(snapshot, CPU)[1].algorithm == "erm"
    saved(tmp_path / "elsewhere", "erm")
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(tmp_path / "elsewhere" / "config.json")
    with pytest.raises(UserError, match="leads out of"):
        load_model(snapshot, CPU)
