from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from metavib.algorithms.erm import ERM
from metavib.networks.backbones import DigitNetwork
from metavib.optimization import NonFiniteError, Optimizer, Training, learning_rate_at


def built(**settings: Any) -> tuple[ERM, Optimizer]:
    torch.manual_seed(0)
    erm = ERM(DigitNetwork(), 2, ERM.Config())
    return erm, Optimizer(erm, Training(**({"schedule": "constant", "clip_norm": 0.0} | settings)))


def loss_of(erm: ERM, seed: int = 0) -> dict[str, Tensor]:
    images = torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(seed))
    logits = erm.classifier(erm.backbone(images))
    return {"classification": nn.functional.cross_entropy(logits, torch.tensor([0, 1, 1, 0]))}


def values_of(erm: ERM, optimizer: Optimizer) -> dict[str, Tensor]:
    parameters = {name: p.detach().clone() for name, p in erm.named_parameters()}
    return parameters | {name: moment.clone() for name, moment in optimizer.state().items()}


def assert_equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def test_a_constant_rate_stays() -> None:
    settings = Training(steps=100, learning_rate=0.5, schedule="constant")
    assert {learning_rate_at(step, settings) for step in range(100)} == {0.5}


def test_a_cosine_rate_falls_from_the_whole_to_nearly_zero() -> None:
    settings = Training(steps=100, learning_rate=0.5, schedule="cosine")
    rates = [learning_rate_at(step, settings) for step in (0, 25, 50, 75, 99)]
    expected = [0.5, 0.25 * (1 + math.sqrt(0.5)), 0.25, 0.25 * (1 - math.sqrt(0.5))]
    assert rates[:4] == pytest.approx(expected)
    assert 0 < rates[4] < 2e-4


def test_warm_up_raises_the_rate_step_by_step_from_above_zero() -> None:
    settings = Training(steps=100, learning_rate=1.0, schedule="constant", warmup=4)
    assert [learning_rate_at(step, settings) for step in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    both = Training(steps=100, learning_rate=1.0, schedule="cosine", warmup=60)
    assert learning_rate_at(50, both) == pytest.approx(0.5 * 51 / 60)


def test_steps_are_those_of_adam_by_hand() -> None:
    erm, optimizer = built(learning_rate=0.01, schedule="cosine", steps=4, weight_decay=0.1)
    weight = erm.classifier.weight
    expected, first, second = weight.detach().double(), torch.zeros(()), torch.zeros(())
    for step in range(3):
        terms = loss_of(erm, seed=step)
        (gradient,) = torch.autograd.grad(terms["classification"], weight, retain_graph=True)
        gradient = gradient.double() + 0.1 * expected
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        corrected = first / (1 - 0.9 ** (step + 1)), second / (1 - 0.999 ** (step + 1))
        rate = 0.01 * 0.5 * (1 + math.cos(math.pi * step / 4))
        expected = expected - rate * corrected[0] / (corrected[1].sqrt() + 1e-8)
        optimizer.step(step, terms)
        torch.testing.assert_close(weight.detach().double(), expected, rtol=0, atol=1e-5)


def test_the_update_is_against_the_sum_of_the_terms() -> None:
    (one, of_one), (two, of_two) = built(), built()
    of_one.step(0, loss_of(one))
    loss = loss_of(two)["classification"]
    of_two.step(0, {"classification": 0.25 * loss, "bottleneck": 0.75 * loss})
    for parameter, other in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(parameter, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("limit", [0.01, 0.0, 1e6])
def test_the_gradient_is_clipped_to_the_limit_and_zero_does_not_clip(limit: float) -> None:
    erm, optimizer = built(clip_norm=limit)
    gradients = torch.autograd.grad(loss_of(erm)["classification"], list(erm.parameters()))
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()
    optimizer.step(0, loss_of(erm))
    moments = [moment.flatten() for name, moment in optimizer.state().items() if name.startswith("exp_avg/")]
    expected = limit if limit == 0.01 else norm
    assert norm > 0.1
    assert 10 * torch.cat(moments).norm().item() == pytest.approx(expected, rel=1e-3)  # (1 - 0.9) gradient


def test_the_backbone_moves_at_its_share_of_the_rate() -> None:
    whole, none, quarter = (built(backbone_rate=share, learning_rate=0.01) for share in (1.0, 0.0, 0.25))
    start = dict(built()[0].named_parameters())
    moved = []
    for erm, optimizer in (whole, none, quarter):
        optimizer.step(0, loss_of(erm))
        moved.append({name: (p - start[name]).detach() for name, p in erm.named_parameters()})
    for name, change in moved[0].items():
        if name.startswith("backbone."):
            assert not moved[1][name].any()
            torch.testing.assert_close(moved[2][name], 0.25 * change, rtol=1e-3, atol=1e-7)
        else:
            assert torch.equal(moved[1][name], change)
            assert change.any()


def nan_loss(erm: ERM) -> dict[str, Tensor]:
    return {name: term * math.nan for name, term in loss_of(erm).items()}


def nan_gradient(erm: ERM) -> dict[str, Tensor]:
    """The loss is finite and its gradient is not: the square root at zero."""
    return {name: term + (term - term).sqrt() for name, term in loss_of(erm).items()}


def infinite_loss(erm: ERM) -> dict[str, Tensor]:
    """The other way round: the gradient is finite."""
    return {name: term + math.inf for name, term in loss_of(erm).items()}


@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
@pytest.mark.parametrize("broken", [nan_loss, nan_gradient, infinite_loss])
@pytest.mark.parametrize("first", [0, 2])
def test_nothing_moves_from_the_first_step_that_is_not_finite(
    broken: Any, clip_norm: float, first: int
) -> None:
    erm, optimizer = built(clip_norm=clip_norm, weight_decay=0.1)
    for step in range(first):
        optimizer.step(step, loss_of(erm, seed=step))
    optimizer.check(["classification"])
    parameters = {name: p.detach().clone() for name, p in erm.named_parameters()}
    moments = {name: moment.clone() for name, moment in optimizer.state().items()}
    for step, loss in enumerate((broken, loss_of, broken), start=first):
        optimizer.step(step, loss(erm))
        assert_equal({name: p.detach() for name, p in erm.named_parameters()}, parameters)
        for name, moment in optimizer.state().items():
            assert torch.equal(moment, moments.get(name, torch.zeros_like(moment)))


def test_check_names_the_step_and_the_terms_of_the_first_failure() -> None:
    erm, optimizer = built()
    names = ["classification", "bottleneck"]
    for step, (classification, bottleneck) in enumerate([(0.5, 0.25), (1.5, math.inf), (math.nan, 0.0)]):
        loss = loss_of(erm)["classification"]
        terms = {
            "classification": loss - loss.detach() + classification,
            "bottleneck": torch.tensor(bottleneck),
        }
        optimizer.step(step, terms)
        if step == 0:
            optimizer.check(names)
    with pytest.raises(NonFiniteError) as error:
        optimizer.check(names)
    words = "training broke down at step 1: classification = 1.5, bottleneck = inf, gradient norm = "
    assert str(error.value).startswith(words)


def test_check_finds_parameters_that_an_update_made_infinite() -> None:
    erm, optimizer = built()
    optimizer.step(0, loss_of(erm))
    with torch.no_grad():
        erm.classifier.bias[0] = math.inf
    with pytest.raises(NonFiniteError, match="parameters that are not finite"):
        optimizer.check(["classification"])


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_restored_optimizer_goes_on_exactly(memory_format: torch.memory_format) -> None:
    settings = {"schedule": "cosine", "steps": 5, "clip_norm": 1.0, "learning_rate": 0.01}
    erm, optimizer = built(**settings)
    erm.to(memory_format=memory_format)
    for step in range(2):
        optimizer.step(step, loss_of(erm, seed=step))
    saved = {name: moment.contiguous() for name, moment in optimizer.state().items()}  # as a file has them

    other, restored = built(**settings)
    other.to(memory_format=memory_format)
    other.load_state_dict(erm.state_dict())
    restored.restore(2, saved)
    for step in range(2, 5):
        optimizer.step(step, loss_of(erm, seed=step))
        restored.step(step, loss_of(other, seed=step))
    assert_equal(values_of(erm, optimizer), values_of(other, restored))
