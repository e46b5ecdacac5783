"""Models that cannot answer: refused when they are loaded, whatever the algorithm, and never a label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import built, described

from metavib.algorithms import ALGORITHMS
from metavib.algorithms.base import Algorithm
from metavib.core.errors import UserError
from metavib.models.directory import load_model, preprocessing_of, save_model
from metavib.models.soundness import fault_of_answers, fault_of_size, fault_of_weights, probe_pixels

CPU = torch.device("cpu")


def poison(algorithm: Algorithm, how: str) -> None:
    """Make the weights that predictions need useless."""
    needed = [
        tensor
        for name, tensor in algorithm.state_dict().items()
        if tensor.is_floating_point() and not name.startswith(algorithm.TRAINING_ONLY)
    ]
    with torch.no_grad():
        if how == "one NaN":
            needed[len(needed) // 2].view(-1)[0] = torch.nan
        elif how == "one infinity":
            needed[-1].view(-1)[-1] = torch.inf
        else:
            for tensor in needed:
                tensor.fill_({"zero": 0.0, "huge": 1e38}[how])


REASONS = {
    "one NaN": "not finite",
    "one infinity": "not finite",
    "zero": "same answer|not finite: .* zero",
    "huge": "not finite|same answer",
}


@pytest.mark.parametrize("how", REASONS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_poisoned_model_is_refused_when_it_is_loaded(name: str, how: str, tmp_path: Path) -> None:
    algorithm = built(name)
    poison(algorithm, how)
    save_model(tmp_path, algorithm, described(name))
    with pytest.raises(UserError, match=REASONS[how]):
        load_model(tmp_path, CPU)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_sound_model_has_no_fault(name: str) -> None:
    algorithm = built(name).eval()
    assert fault_of_answers(algorithm, preprocessing_of(algorithm.backbone), CPU) is None
    assert fault_of_size(algorithm) is None
    assert fault_of_weights(algorithm.state_dict(), algorithm.state_dict()) is None


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64])
def test_weights_that_are_no_floats_are_refused(dtype: torch.dtype) -> None:
    own = {"weight": torch.ones(2)}
    assert "weight holds" in str(fault_of_weights({"weight": torch.ones(2, dtype=dtype)}, own))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_floats_of_another_length_are_weights(dtype: torch.dtype) -> None:
    assert fault_of_weights({"weight": torch.ones(2, dtype=dtype)}, {"weight": torch.ones(2)}) is None


@pytest.mark.parametrize(
    "method",
    [
        {"latent_width": 10**9},
        {"latent_width": 10**6},
        {"classifier_draws": 10**9},
        {"latent_draws": 10**9},
        {"classifier_draws": 10**5, "latent_draws": 10**5},
    ],
)
def test_absurd_sizes_are_refused_before_they_take_memory(method: dict[str, Any], tmp_path: Path) -> None:
    save_model(tmp_path, built("metavib"), described("metavib", method=method))
    with pytest.raises(UserError, match=r"config\.json does not describe a model that can be used"):
        load_model(tmp_path, CPU)


def test_widths_of_what_only_training_needs_are_bounded_too(tmp_path: Path) -> None:
    save_model(tmp_path, built("feature_critic"), described("feature_critic", method={"critic_width": 10**9}))
    with pytest.raises(UserError, match="weights"):
        load_model(tmp_path, CPU)


def test_probes_differ() -> None:
    images = probe_pixels(preprocessing_of(built("erm").backbone))
    assert images.shape == (3, 1, 28, 28)
    assert len({image.numpy().tobytes() for image in images}) == 3
