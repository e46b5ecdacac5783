from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from metavib.algorithms.erm import ERM
from metavib.nn.backbones import DigitNetwork
from metavib.training.optimizer import Optimizer, Training, learning_rate_at


def built(
    memory_format: torch.memory_format = torch.contiguous_format, **settings: Any
) -> tuple[ERM, Optimizer]:
    """A network, and the optimizer of a stack of which it is the only run."""
    torch.manual_seed(0)
    erm = ERM(DigitNetwork(), 2, ERM.Config()).to(memory_format=memory_format)
    parameters = {name: p.detach().unsqueeze(0) for name, p in erm.named_parameters()}
    backbone = {name for name in parameters if name.startswith("backbone.")}
    training = Training(**({"schedule": "constant", "clip_norm": 0.0, "steps": 9} | settings))
    return erm, Optimizer(parameters, backbone, [training])


def make_step(optimizer: Optimizer, erm: ERM, step: int, terms: dict[str, Tensor]) -> None:
    """An update against the sum of the terms."""
    values = torch.stack(list(terms.values()))
    own = dict(erm.named_parameters())
    gradients = torch.autograd.grad(values.sum(), list(own.values()))
    by_name = {name: gradient.unsqueeze(0) for name, gradient in zip(own, gradients, strict=True)}
    optimizer.step(torch.tensor(step), values.detach().unsqueeze(0), by_name)


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
        make_step(optimizer, erm, step, terms)
        torch.testing.assert_close(weight.detach().double(), expected, rtol=0, atol=1e-5)


def test_the_terms_are_watched_and_the_update_is_against_the_gradient() -> None:
    (one, of_one), (two, of_two) = built(), built()
    make_step(of_one, one, 0, loss_of(one))
    loss = loss_of(two)["classification"]
    make_step(of_two, two, 0, {"classification": 0.25 * loss + 7.0, "bottleneck": 0.75 * loss})
    for parameter, other in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(parameter, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("limit", [0.01, 0.0, 1e6])
def test_the_gradient_is_clipped_to_the_limit_and_zero_does_not_clip(limit: float) -> None:
    erm, optimizer = built(clip_norm=limit)
    gradients = torch.autograd.grad(loss_of(erm)["classification"], list(erm.parameters()))
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()
    make_step(optimizer, erm, 0, loss_of(erm))
    moments = [moment.flatten() for name, moment in optimizer.state().items() if name.startswith("exp_avg/")]
    expected = limit if limit == 0.01 else norm
    assert norm > 0.1
    assert 10 * torch.cat(moments).norm().item() == pytest.approx(expected, rel=1e-3)  # (1 - 0.9) gradient


def test_what_stands_apart_is_clipped_by_its_own_norm() -> None:
    erm, _ = built()
    training = Training(schedule="constant", clip_norm=0.01, steps=9)
    parameters = {name: parameter.detach().unsqueeze(0) for name, parameter in erm.named_parameters()}
    optimizer = Optimizer(parameters, [], [training], ["classifier."])
    make_step(optimizer, erm, 0, loss_of(erm))
    norms = {"backbone.": 0.0, "classifier.": 0.0}
    for name in parameters:
        (part,) = (prefix for prefix in norms if name.startswith(prefix))
        norms[part] += (10 * optimizer.moments["exp_avg"][name]).square().sum().item()
    assert [math.sqrt(norm) for norm in norms.values()] == pytest.approx([0.01, 0.01], rel=1e-3)


def test_the_backbone_moves_at_its_share_of_the_rate() -> None:
    whole, none, quarter = (built(backbone_rate=share, learning_rate=0.01) for share in (1.0, 0.0, 0.25))
    start = dict(built()[0].named_parameters())
    moved = []
    for erm, optimizer in (whole, none, quarter):
        make_step(optimizer, erm, 0, loss_of(erm))
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
        make_step(optimizer, erm, step, loss_of(erm, seed=step))
    assert optimizer.failures(["classification"]) == {}
    parameters = {name: p.detach().clone() for name, p in erm.named_parameters()}
    moments = {name: moment.clone() for name, moment in optimizer.state().items()}
    for step, loss in enumerate((broken, loss_of, broken), start=first):
        make_step(optimizer, erm, step, loss(erm))
        assert_equal({name: p.detach() for name, p in erm.named_parameters()}, parameters)
        assert_equal(optimizer.state(), moments)
        assert list(optimizer.failures(["classification"])) == [0]


def test_failures_name_the_step_and_the_terms_of_the_first_failure() -> None:
    erm, optimizer = built()
    names = ["classification", "bottleneck"]
    for step, (classification, bottleneck) in enumerate([(0.5, 0.25), (1.5, math.inf), (math.nan, 0.0)]):
        loss = loss_of(erm)["classification"]
        terms = {
            "classification": loss - loss.detach() + classification,
            "bottleneck": torch.tensor(bottleneck),
        }
        make_step(optimizer, erm, step, terms)
        if step == 0:
            assert optimizer.failures(names) == {}
    words = "training broke down at step 1: classification = 1.5, bottleneck = inf, gradient norm = "
    (failure,) = optimizer.failures(names).values()
    assert failure.startswith(words)


def test_failures_tell_of_parameters_that_an_update_made_infinite() -> None:
    erm, optimizer = built()
    make_step(optimizer, erm, 0, loss_of(erm))
    with torch.no_grad():
        erm.classifier.bias[0] = math.inf
    (failure,) = optimizer.failures(["classification"]).values()
    assert "parameters that are not finite" in failure


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_restored_optimizer_goes_on_exactly(memory_format: torch.memory_format) -> None:
    settings = {"schedule": "cosine", "steps": 5, "clip_norm": 1.0, "learning_rate": 0.01}
    erm, optimizer = built(memory_format, **settings)
    for step in range(2):
        make_step(optimizer, erm, step, loss_of(erm, seed=step))
    saved = {name: moment.contiguous() for name, moment in optimizer.state().items()}  # as a file has them

    other, restored = built(memory_format, **settings)
    other.load_state_dict(erm.state_dict())
    restored.restore(saved)
    for step in range(2, 5):
        make_step(optimizer, erm, step, loss_of(erm, seed=step))
        make_step(restored, other, step, loss_of(other, seed=step))
    assert_equal(values_of(erm, optimizer), values_of(other, restored))


# --- many runs, of two small parameters each --------------------------------------------------------------

STEPS = 5
STACK = [
    Training(steps=STEPS, learning_rate=0.1, clip_norm=0.0, schedule="constant", weight_decay=0.1),
    Training(steps=STEPS, learning_rate=0.03, clip_norm=1.0, backbone_rate=0.25, weight_decay=0.1),
    Training(steps=STEPS, learning_rate=0.2, clip_norm=0.2, warmup=3, backbone_rate=0.0, weight_decay=0.1),
]
EVERYONE = range(len(STACK))


def drawn(seed: int, runs: Sequence[int]) -> dict[str, Tensor]:
    """Parameters or gradients of these runs: each run gets the same in whatever company."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"backbone.weight": (4, 3), "classifier.weight": (5, 2), "classifier.bias": (5,)}
    everyone = {name: torch.randn(len(STACK), *shape, generator=generator) for name, shape in shapes.items()}
    return {name: values[list(runs)] for name, values in everyone.items()}


def stack_of(runs: Sequence[int]) -> Optimizer:
    return Optimizer(drawn(100, runs), ["backbone.weight"], [STACK[run] for run in runs])


def go_on(
    optimizer: Optimizer,
    runs: Sequence[int],
    steps: Iterable[int],
    broken: tuple[int, int, float] | None = None,
) -> None:
    """Steps with a loss of 1; `broken` is (step, run, its loss)."""
    for step in steps:
        terms = torch.ones(len(runs), 1)
        if broken is not None and step == broken[0]:
            terms[broken[1]] = broken[2]
        optimizer.step(torch.tensor(step), terms, drawn(step, runs))


def values_in(optimizer: Optimizer, run: int) -> dict[str, Tensor]:
    """Parameters and moments of one run."""
    return {name: value[run].clone() for name, value in (optimizer.parameters | optimizer.state()).items()}


def assert_close(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=1e-6, atol=1e-8)


def values_alone(run: int, steps: int) -> dict[str, Tensor]:
    alone = stack_of([run])
    go_on(alone, [run], range(steps))
    return values_in(alone, 0)


def test_stacked_runs_move_as_each_does_alone() -> None:
    stacked = stack_of(EVERYONE)
    go_on(stacked, EVERYONE, range(STEPS))
    for run in EVERYONE:
        assert_close(values_in(stacked, run), values_alone(run, STEPS))
    assert stacked.failures(["loss"]) == {}


def test_stacked_runs_move_as_torchs_adam_and_clipping_move_each() -> None:
    stacked = stack_of(EVERYONE)
    go_on(stacked, EVERYONE, range(STEPS))
    for run, settings in enumerate(STACK):
        own = {name: nn.Parameter(value[0]) for name, value in drawn(100, [run]).items()}
        shares = {name: settings.backbone_rate if name == "backbone.weight" else 1.0 for name in own}
        adam = torch.optim.Adam(
            [{"params": [own[name]], "share": shares[name]} for name in own],
            weight_decay=settings.weight_decay,
        )
        for step in range(STEPS):
            for name, gradient in drawn(step, [run]).items():
                own[name].grad = gradient[0]
            nn.utils.clip_grad_norm_(list(own.values()), settings.clip_norm or math.inf)
            for group in adam.param_groups:
                group["lr"] = learning_rate_at(step, settings) * group["share"]
            adam.step()
        moments = {
            f"{moment}/{name}": adam.state[parameter][moment]
            for moment in ("exp_avg", "exp_avg_sq")
            for name, parameter in own.items()
        }
        found = values_in(stacked, run)
        assert found.keys() == own.keys() | moments.keys()
        for name, expected in (own | moments).items():
            torch.testing.assert_close(found[name], expected.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_run_that_breaks_down_stays_where_it_was_and_the_others_go_on_as_alone(loss: float) -> None:
    stacked = stack_of(EVERYONE)
    go_on(stacked, EVERYONE, range(STEPS), broken=(2, 1, loss))
    assert_close(values_in(stacked, 1), values_alone(1, 2))
    for run in (0, 2):
        assert_close(values_in(stacked, run), values_alone(run, STEPS))
    failures = stacked.failures(["loss"])
    assert list(failures) == [1]
    assert failures[1].startswith(f"training broke down at step 2: loss = {loss:g}, gradient norm = ")


def test_a_gradient_that_is_not_finite_stops_its_own_run_only() -> None:
    stacked = stack_of(EVERYONE)
    gradients = drawn(0, EVERYONE)
    gradients["backbone.weight"][2, 0, 0] = math.nan
    stacked.step(torch.tensor(0), torch.ones(3, 1), gradients)
    go_on(stacked, EVERYONE, range(1, STEPS))
    assert_equal(values_in(stacked, 2), values_in(stack_of(EVERYONE), 2))
    for run in (0, 1):
        assert_close(values_in(stacked, run), values_alone(run, STEPS))
    assert list(stacked.failures(["loss"])) == [2]


def test_each_run_that_breaks_down_is_told_of_by_its_own_step_and_losses() -> None:
    stacked = stack_of(EVERYONE)
    for step, losses in enumerate([[1.0, 2.0, math.nan], [math.inf, 3.0, 4.0], [math.nan, 5.0, math.nan]]):
        stacked.step(torch.tensor(step), torch.tensor(losses).unsqueeze(-1), drawn(step, EVERYONE))
    failures = stacked.failures(["loss"])
    assert failures.keys() == {0, 2}
    assert "step 1: loss = inf, " in failures[0]
    assert "step 0: loss = nan, " in failures[2]


def test_parameters_that_are_not_finite_are_told_of_run_by_run() -> None:
    stacked = stack_of(EVERYONE)
    stacked.parameters["classifier.bias"][1, 0] = -math.inf
    failures = stacked.failures(["loss"])
    assert list(failures) == [1]
    assert "parameters that are not finite" in failures[1]


def test_a_held_run_stays_and_the_others_go_on_as_alone() -> None:
    stacked = stack_of(EVERYONE)
    go_on(stacked, EVERYONE, range(2))
    stacked.hold(0)
    held = values_in(stacked, 0)
    go_on(stacked, EVERYONE, range(2, STEPS))
    assert_equal(values_in(stacked, 0), held)
    for run in (1, 2):
        assert_close(values_in(stacked, run), values_alone(run, STEPS))
    assert stacked.failures(["loss"]) == {}


def test_a_restored_stack_goes_on_exactly() -> None:
    stacked, restored = stack_of(EVERYONE), stack_of(EVERYONE)
    go_on(stacked, EVERYONE, range(2))
    for name, parameter in restored.parameters.items():
        parameter.copy_(stacked.parameters[name])
    restored.restore({name: moment.clone() for name, moment in stacked.state().items()})
    for optimizer in (stacked, restored):
        go_on(optimizer, EVERYONE, range(2, STEPS))
    assert_equal(
        stacked.parameters | stacked.state(),
        restored.parameters | restored.state(),
    )
