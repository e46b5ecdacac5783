"""`metavib examples`: training images are kept when asked for, by nobody else, and taken out again."""

from __future__ import annotations

import json

import pytest
import torch

from metavib.core.errors import UserError
from metavib.models.directory import description_of, places_of
from metavib.models.examples import FILE, read_examples
from metavib.runs.examples import keep_examples
from metavib.serving.predictor import load
from metavib.training.run_directory import RunDirectory

CPU = torch.device("cpu")


def test_images_are_kept_shown_to_nobody_else_and_taken_out(metavib, finished_copy, tmp_path):
    run = finished_copy.run
    assert description_of(run).examples is None
    before = load(run, device="cpu")
    assert not (run / "model" / FILE).exists()  # none unless somebody asks

    status, out, _ = metavib("examples", run, "--keep", "2", "--device", "cpu", "--json")
    assert status == 0
    description = description_of(run)
    assert json.loads(out)["images"] == description.examples.images == 2 * len(description.classes)
    model = run / "model"
    width = before.feature_width()
    found = read_examples(
        model, places_of(run), description.examples, classes=len(description.classes), features=width
    )
    assert torch.bincount(found.labels).tolist() == [2] * len(description.classes)
    assert found.pixels.shape[2:] == (28, 28)
    assert "training images beside the model" in (model / "README.md").read_text()

    after = load(run, device="cpu")  # predictions are what they were
    pixels = found.pixels[:1].numpy()
    one, other = before.classify(pixels), after.classify(pixels)
    assert one.probabilities.tolist() == other.probabilities.tolist()
    assert other.nearest is None
    after.examples = found
    number = int(after.classify(pixels).nearest[0, 0])
    assert int(found.labels[number]) == int(other.probabilities.argmax())

    after.save_pretrained(tmp_path / "saved")  # what goes to others has none
    assert not (tmp_path / "saved" / FILE).exists()
    assert description_of(tmp_path / "saved").examples is None

    assert metavib("examples", run, "--remove").status == 0
    assert not (model / FILE).exists()
    assert description_of(run).examples is None
    assert "training images beside" not in (model / "README.md").read_text()


@pytest.mark.parametrize("count", [0, -1, 51])
def test_a_number_beyond_the_limits_is_refused_before_anything_is_opened(tmp_path, count):
    with pytest.raises(UserError, match="from 1 to 50"):
        keep_examples(RunDirectory(tmp_path / "nowhere"), CPU, count)


def test_a_run_that_is_not_there_is_named(refused, tmp_path):
    assert "nowhere" in refused("examples", str(tmp_path / "nowhere"))
    assert "nowhere" in refused("examples", str(tmp_path / "nowhere"), "--remove")
