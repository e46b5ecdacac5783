"""A network from elsewhere tried out before anything is trained: is it pure, and what can be done with it?

Two images pass through it, alone and together, as in training and as in evaluation. Where features differ, the
layer is named that made the difference first.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from metavib.core.errors import UserError, first_line
from metavib.nn.randomness import key_of, normal

TOLERANCE = (
    1e-3  # of the largest feature: rounding differs between batches, and between fused layers and others
)


class Seen(NamedTuple):
    """The output of a layer."""

    layer: str
    kind: str
    output: Any


def probe_images(channels: int, image_size: int) -> Tensor:
    """Two images of noise as a network sees it after normalisation, the same everywhere."""
    return normal(key_of(0, "probe", "network"), (2, channels, image_size, image_size))


def feature_width(network: nn.Module, images: Tensor) -> int:
    """How many features the network gives for each image. Maps, and anything else than features, are refused."""
    channels, size = images.shape[1], images.shape[-1]
    what = f"{channels} x {size} x {size}"
    try:
        with torch.no_grad():
            found = network(images)
    except UserError:
        raise
    except Exception as error:  # of code that is not ours, anything
        raise UserError(
            f"{type(network).__name__} does not take images of {what}: {in_short(error)}. Give another "
            "--image-size, or a network for images of this size."
        ) from error
    if not isinstance(found, Tensor):
        raise UserError(
            f"{type(network).__name__} gives a {type(found).__name__}, not a tensor of features [n, d]: let it "
            "return the features alone."
        )
    if found.dim() != 2 or found.shape[0] != images.shape[0] or found.shape[1] < 1:
        raise UserError(
            f"{type(network).__name__} gives {_sizes(found)} for {images.shape[0]} images of {what}, not features "
            "[n, d]: pool or flatten them."
        )
    if not found.is_floating_point():
        raise UserError(f"{type(network).__name__} gives {found.dtype}, not features in floats.")
    return int(found.shape[1])


def require_pure(network: nn.Module, images: Tensor) -> None:
    """Refuse a network that keeps a state, draws, or mixes images; or whose features are not finite."""
    before = {name: value.clone() for name, value in network.state_dict().items()}
    modes = {module: module.training for module in network.modules()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            evaluated, of_evaluated = _watched(network.eval(), images)
            drawn_from = torch.get_rng_state()
            trained, of_trained = _watched(network.train(), images)
            drew = not torch.equal(drawn_from, torch.get_rng_state())
        finally:
            for module, mode in modes.items():
                module.training = mode
        _require_alike(network, evaluated, trained, of_evaluated, of_trained, drew=drew)
        again, of_again = _watched(network, images)
        _require(
            _alike(evaluated, again),
            "gives the same image other features the second time",
            of_evaluated,
            of_again,
        )
        alone, of_alone = _watched(network, images[:1])
        _require(
            _alike(evaluated[:1], alone),
            "mixes images: the features of one depend on those beside it",
            of_evaluated,
            of_alone,
        )
    for name, value in network.state_dict().items():
        if not _same(value, before[name]):
            raise UserError(
                f"{name} changes while the network runs: a state that cannot be kept apart from the features. Use "
                "a layer without it, as GroupNorm or LayerNorm."
            )
    if not evaluated.isfinite().all():
        first = next((seen for seen in of_evaluated if not _finite(seen.output)), None)
        raise UserError(
            f"the features of {type(network).__name__} are not finite{_at(first)}: give it weights that it was "
            "trained to, or draw smaller ones."
        )


def stage_ends(network: nn.Module, images: Tensor) -> tuple[Tensor, ...]:
    """The maps at the end of each stage but the last, found from the output of the layers.

    A stage ends where its maps become smaller. A network that keeps one size, as most transformers do, has four
    stages of equally many blocks.
    """
    given: list[tuple[str, str, int, Tensor]] = []

    def keep(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        weighted = name and any(True for _ in module.parameters())
        if weighted and isinstance(output, Tensor) and (count := _positions(output, len(images))) > 1:
            given.append((name.rpartition(".")[0], type(module).__name__, count, output))

    with watching_all(network, keep):
        network(images)
    ends: dict[int, Tensor] = {}  # by the size of the maps, the largest first
    largest = 0
    for *_, count, output in reversed(given):
        if count > largest:  # a smaller one is a look at the whole map within a block
            largest = count
            ends[count] = output
    if len(ends) > 1:
        return tuple(ends.values())[:0:-1]
    blocks: dict[tuple[str, str], list[Tensor]] = {}
    for owner, kind, count, output in given:
        if count == largest:
            blocks.setdefault((owner, kind), []).append(output)
    longest = max(blocks.values(), key=len, default=[])
    cuts = sorted({len(longest) * part // 4 for part in (1, 2, 3)} - {0})
    return tuple(longest[cut - 1] for cut in cuts)


def _positions(output: Tensor, images: int) -> int:
    """The places that a layer tells of: of maps, channels first or last, or of tokens; 0 of anything else."""
    if output.dim() not in (3, 4) or output.shape[0] != images:
        return 0
    if output.dim() == 3:
        return output.shape[1]
    _, first, second, third = output.shape
    return second * third if second == third else first * second if first == second else 0


def fault_of_second_order(backbone: nn.Module, images: Tensor) -> str | None:
    """The reason why the features cannot be differentiated twice, in words; None where they can."""
    try:
        _twice(backbone, (images,))
    except (RuntimeError, NotImplementedError) as error:
        culprit = _first_fault(backbone, images, _twice)
        return f"{culprit or type(backbone).__name__} has no second derivatives ({in_short(error)})"
    return None


def fault_of_stacking(backbone: Any, images: Tensor) -> str | None:
    """The reason why runs with this network cannot be trained as one program, in words; None where they can."""
    parameters, buffers = stack_module_state([backbone, backbone])

    def objective(own: dict[str, Tensor], kept: dict[str, Tensor]) -> Tensor:
        return functional_call(backbone, (own, kept), (images,)).square().mean()

    former, backbone.stacked = backbone.stacked, True
    try:
        with quiet():
            vmap(grad(objective))({n: v.detach() for n, v in parameters.items()}, buffers)
    except Exception as error:  # of code that is not ours, anything
        return in_short(error)
    finally:
        backbone.stacked = former
    return None


def _watched(network: nn.Module, images: Tensor) -> tuple[Tensor, list[Seen]]:
    """The features, and what every layer gave on the way, those inside another before it."""
    found: list[Seen] = []

    def keep(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        # A copy: a later layer may write into it.
        kept = output.detach().clone() if isinstance(output, Tensor) else None
        found.append(Seen(name, type(module).__name__, kept))

    with watching_all(network, keep):
        return network(images), found


@contextlib.contextmanager
def watching_all(network: nn.Module, keep: Callable[[str, nn.Module, Any, Any], None]) -> Iterator[None]:
    """Inside, `keep` is told of each call of a module: its name, itself, its inputs and its output."""
    with contextlib.ExitStack() as hooks:
        for name, module in network.named_modules():
            hooks.callback(module.register_forward_hook(functools.partial(keep, name)).remove)
        yield


def _require_alike(
    network: nn.Module,
    evaluated: Tensor,
    trained: Any,
    of_evaluated: list[Seen],
    of_trained: list[Seen],
    *,
    drew: bool,
) -> None:
    name = type(network).__name__
    if not isinstance(trained, Tensor) or trained.shape != evaluated.shape:
        given = _sizes(trained) if isinstance(trained, Tensor) else type(trained).__name__
        raise UserError(
            f"{name} gives {given} in training and {_sizes(evaluated)} in evaluation: give a network whose "
            "features are the same in both."
        )
    what = "draws random numbers while it trains" if drew else "computes something else while it trains"
    _require(not drew and _alike(evaluated, trained), what, of_evaluated, of_trained)


def _require(held: bool, otherwise: str, one: list[Seen], other: list[Seen]) -> None:
    """Refuse the network and name the layer that made the difference first."""
    if held:
        return
    culprit = next(
        (
            mine
            for mine, theirs in zip(one, other, strict=False)
            if mine.layer != theirs.layer or not _alike(mine.output, theirs.output)
        ),
        None,
    )
    layer = "the network" if culprit is None or not culprit.layer else f"its layer {culprit.layer}"
    kind = "" if culprit is None else f" ({culprit.kind})"
    raise UserError(
        f"{layer}{kind} {otherwise}, which cannot be made pure: take it out, or replace it by a layer that has no "
        "state and draws nothing."
    )


def _alike(one: Any, other: Any) -> bool:
    """Whether values differ by rounding alone; of batches of different sizes, the rows that both have."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return True
    if one.dim() == 0 or other.dim() == 0 or one.shape[1:] != other.shape[1:]:
        return one.shape == other.shape
    rows = min(len(one), len(other))
    left, right = one[:rows].double(), other[:rows].double()
    if not (left.isfinite().all() and right.isfinite().all()):
        return True  # which is told apart
    largest = left.abs().max() if left.numel() else left.sum()
    return bool(((left - right).abs() <= TOLERANCE * largest + 1e-6).all())


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


def _finite(output: Any) -> bool:
    return not isinstance(output, Tensor) or not output.is_floating_point() or bool(output.isfinite().all())


def _at(seen: Seen | None) -> str:
    return f", first after {seen.layer} ({seen.kind})" if seen is not None and seen.layer else ""


def _twice(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Differentiate a layer's output twice by its inputs and parameters."""
    given = [values.detach().requires_grad_() for values in inputs]
    leaves = [*given, *(own for own in layer.parameters() if own.requires_grad)]
    first = torch.autograd.grad(layer(*given).square().mean(), leaves, create_graph=True, allow_unused=True)
    size = torch.stack([own.square().sum() for own in first if own is not None]).sum()
    try:
        size.backward()  # not `grad`, which passes in silence over a path that ends
    finally:
        layer.zero_grad(set_to_none=True)


def _first_fault(
    network: nn.Module, images: Tensor, attempt: Callable[[nn.Module, tuple[Tensor, ...]], None]
) -> str | None:
    """The name of the first layer, those inside another before it, that an attempt fails with."""
    tried: list[tuple[str, nn.Module, tuple[Tensor, ...]]] = []

    def keep(name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        floats = all(isinstance(own, Tensor) and own.is_floating_point() for own in inputs)
        if name and inputs and floats and isinstance(output, Tensor):
            tried.append((name, module, tuple(own.detach().clone() for own in inputs)))

    with watching_all(network, keep), torch.no_grad():
        network(images)
    for name, module, inputs in tried:
        try:
            attempt(module, inputs)
        except (RuntimeError, NotImplementedError):
            return f"{name} ({type(module).__name__})"
    return None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of code that is not ours, and with what it prints on stderr: stdout has results."""
    import warnings

    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        yield


def _sizes(values: Tensor) -> str:
    return "[" + ", ".join(map(str, values.shape)) + "]"


def in_short(error: Exception) -> str:
    """The first line of an error, without its end."""
    return first_line(error).rstrip(".")[:200]
