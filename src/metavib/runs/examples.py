"""Training images that a finished run keeps in its model directory, because somebody asked for it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from metavib.core.errors import UserError
from metavib.core.shapes import UInt8
from metavib.data.dataset import Reading
from metavib.data.opening import LabelledRows
from metavib.models.directory import ModelDescription, model_folder, preprocessing_of, redescribe
from metavib.models.examples import FILE, MOST, MOST_OF_A_CLASS, SIDE, Examples, write_examples
from metavib.models.measuring import embed
from metavib.nn.randomness import key_of, permutation
from metavib.runs.finished import renew_card, trained_model
from metavib.training.run_directory import RunDirectory


def keep_examples(
    directory: RunDirectory,
    device: torch.device,
    of_a_class: int,
    *,
    data_root: Path | None = None,
    skip_bad: bool = False,
    reading: Reading | None = None,
) -> ModelDescription:
    """Put up to so many training images of each class into the model directory, drawn by a hash."""
    if not 1 <= of_a_class <= MOST_OF_A_CLASS:
        raise UserError(
            f"a model keeps from 1 to {MOST_OF_A_CLASS} images of a class, not {of_a_class}. "
            "To keep none: metavib examples RUN --remove."
        )
    run = trained_model(directory, device, data_root=data_root)
    each = min(of_a_class, MOST // len(run.description.classes))
    if each == 0:
        raise UserError(f"a model keeps {MOST:,} images at most, and this one has more classes than that.")
    source = run.sources(device, skip_bad=skip_bad, reading=reading).train
    chosen: list[int] = []
    labels = source.labels.cpu()
    order = permutation(key_of(run.description.seed, "examples"), len(labels))
    for label in range(len(run.description.classes)):
        own = order[labels[order] == label]
        chosen += own[:each].tolist()
    rows = torch.tensor(chosen, device=source.rows.device)
    taken = LabelledRows(
        source.store, preprocessing_of(run.algorithm.backbone), source.rows[rows], source.labels[rows]
    )
    with torch.no_grad():
        embedded = embed(run.algorithm, taken.batches())
    pixels = source.store.gather(source.rows[rows]).cpu()
    examples = Examples(_small(pixels), embedded.features.cpu().float(), embedded.labels.cpu())
    kept = write_examples(model_folder(directory.path), examples)
    description = redescribe(directory.path, examples=kept)
    renew_card(directory, description)
    return description


def remove_examples(directory: RunDirectory) -> ModelDescription:
    """Take them out again."""
    if not directory.path.is_dir():
        raise UserError(f"there is no run directory {directory.path}.")
    description = redescribe(directory.path, examples=None)  # first: a file that nobody names is never read
    (model_folder(directory.path) / FILE).unlink(missing_ok=True)
    renew_card(directory, description)
    return description


def _small(pixels: UInt8[Tensor, "images channels height width"]) -> Tensor:
    if max(pixels.shape[2:]) <= SIDE:
        return pixels
    from torchvision.transforms.v2.functional import resize

    return resize(pixels, [SIDE, SIDE], antialias=True)
