"""Training images in a model directory: read back as written, or refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from metavib.core.errors import UserError
from metavib.models.examples import FILE, MOST, SIDE, Examples, KeptExamples, read_examples, write_examples

FEATURES = torch.tensor([[0.0, 0.0], [1.0, 0.0], [5.0, 0.0], [0.5, 0.0]])
EXAMPLES = Examples(
    torch.arange(4, dtype=torch.uint8).reshape(4, 1, 1, 1).expand(4, 1, 8, 8),
    FEATURES,
    torch.tensor([0, 0, 0, 1]),
)


def test_what_is_written_is_read_back(tmp_path):
    kept = write_examples(tmp_path, EXAMPLES)
    found = read_examples(tmp_path, (tmp_path,), kept, classes=2, features=2)
    assert kept.images == 4
    assert torch.equal(found.pixels, EXAMPLES.pixels)
    assert torch.equal(found.features, FEATURES)
    assert torch.equal(found.labels, EXAMPLES.labels)


def test_the_nearest_are_of_the_answers_class_and_the_nearest_first():
    asked = torch.tensor([[0.9, 0.0], [0.0, 0.0]])
    assert EXAMPLES.nearest(asked, torch.tensor([0, 1]), 2).tolist() == [[1, 0], [3, -1]]
    assert EXAMPLES.nearest(asked[:1], torch.tensor([7]), 2).tolist() == [[-1, -1]]
    assert EXAMPLES.nearest(asked[:1], torch.tensor([0]), 6).tolist() == [[1, 0, 2, -1, -1, -1]]


def _written(folder: Path, **changes: torch.Tensor) -> KeptExamples:
    content = safetensors.torch.save(
        {"pixels": EXAMPLES.pixels.contiguous(), "features": FEATURES, "labels": EXAMPLES.labels} | changes
    )
    (folder / FILE).write_bytes(content)
    import hashlib

    return KeptExamples(4, hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"labels": torch.tensor([0, 0, 0, 2])}, "class that the model does not know"),
        ({"labels": torch.tensor([0, 0, 0, -1])}, "class that the model does not know"),
        ({"labels": torch.zeros(0, dtype=torch.int64)}, "labels"),
        ({"labels": torch.zeros(MOST + 1, dtype=torch.int64)}, "labels"),
        ({"labels": torch.zeros(4)}, "labels"),
        ({"pixels": torch.zeros(4, 1, 8, 8)}, "pixels"),
        ({"pixels": torch.zeros(3, 1, 8, 8, dtype=torch.uint8)}, "pixels"),
        ({"pixels": torch.zeros(4, 2, 8, 8, dtype=torch.uint8)}, "another size"),
        ({"pixels": torch.zeros(4, 1, SIDE + 1, 8, dtype=torch.uint8)}, "another size"),
        ({"pixels": torch.zeros(4, 1, 0, 0, dtype=torch.uint8)}, "another size"),
        ({"features": torch.full((4, 2), float("nan"))}, "features"),
        ({"features": torch.zeros(4, 3)}, "features"),
    ],
)
def test_a_file_of_another_content_is_refused(tmp_path, changes, why):
    kept = _written(tmp_path, **changes)
    with pytest.raises(UserError, match=why):
        read_examples(tmp_path, (tmp_path,), kept, classes=2, features=2)


def test_a_damaged_missing_or_linked_file_is_refused(tmp_path):
    kept = write_examples(tmp_path, EXAMPLES)
    with pytest.raises(UserError, match="sha256 differs"):
        read_examples(tmp_path, (tmp_path,), replace(kept, sha256="0"), classes=2, features=2)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / FILE).symlink_to(tmp_path / FILE)
    with pytest.raises(UserError, match="leads out"):
        read_examples(elsewhere, (elsewhere,), kept, classes=2, features=2)
    (tmp_path / FILE).unlink()
    with pytest.raises(UserError, match="examples again"):
        read_examples(tmp_path, (tmp_path,), kept, classes=2, features=2)
