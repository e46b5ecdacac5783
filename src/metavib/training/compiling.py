"""A step that torch.compile makes faster, and that goes on as it is where it cannot.

Losses are pure functions without branches on values, so the losses of a step and their gradients are one graph, in
which inductor fuses what follows a convolution or a product. What it makes is captured in a CUDA graph as the
eager step is. That takes tens of seconds, once for all runs of the same shapes: it is announced, bounded, and
compared with the eager step before it is used. Whatever goes wrong costs one line, and the step stays eager.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import signal
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, final

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from metavib.algorithms.base import Algorithm, Noise
from metavib.core.errors import first_line
from metavib.core.terminal import duration, say
from metavib.data.episodes import Episode

FEWEST_STEPS = 300  # of a run; fewer are over before the compiler is
LONGEST = 240.0  # seconds that it may take
TOLERANCE = {None: 1e-3, torch.bfloat16: 5e-2}  # by precision: what losses may differ by from the eager ones

NamedTensors = dict[str, Tensor]
Found = TypeVar("Found", bound=tuple[NamedTensors, Any])


class TooLong(Exception):
    """The compiler has had its time."""


def losses(algorithm: Algorithm, episode: Episode, noise: Noise) -> NamedTensors:
    """The terms of one run, to be differentiated."""
    return algorithm(episode, noise)


def stacked_gradients(
    algorithm: Algorithm, parameters: NamedTensors, buffers: NamedTensors, episode: Episode, noise: Noise
) -> tuple[NamedTensors, NamedTensors]:
    """The terms of stacked runs, [runs] each, and the gradients of each run's sum."""

    def objective(own: Any, kept: Any, episode: Episode, noise: Noise) -> tuple[Tensor, Any]:
        terms = functional_call(algorithm, (own, kept), (episode, noise))
        return torch.stack(list(terms.values())).sum(), terms

    gradients, (_, terms) = vmap(grad_and_value(objective, has_aux=True))(parameters, buffers, episode, noise)
    return terms, gradients


def pays(algorithm: Algorithm, device: torch.device, steps: int) -> bool:
    """Whether a run is over sooner by a compiled step, as far as that is known beforehand.

    Networks with kernels of their own are faster by these, and those that leave a GPU idle are stacked instead.
    """
    backbone = algorithm.backbone
    return (
        device.type == "cuda" and steps >= FEWEST_STEPS and not (backbone.small or backbone.has_own_kernels)
    )


_TRIED: set[Any] = set()  # kinds of steps that this process has compiled: later runs find them
_FAILED: set[Any] = set()  # and that it could not


@final
class Compiled:
    """A function of an algorithm, compiled at the first call; as it is where that was not wanted or failed."""

    def __init__(
        self,
        function: Callable[..., Any],
        algorithm: Algorithm,
        *,
        wanted: bool,
        sizes: tuple[Any, ...] = (),
        backend: Any = "inductor",
        longest: float = LONGEST,
    ) -> None:
        """`sizes`: of what the function is given beside the algorithm."""
        self.function, self.algorithm, self.backend, self.longest = function, algorithm, backend, longest
        self.kind = (*_shape_of(algorithm), function, sizes, algorithm.backbone.precision, backend)
        self.wanted = wanted and self.kind not in _FAILED
        self.tried = self.kind in _TRIED
        if self.wanted:  # the compiler makes its own, and does not see into those of others
            algorithm.backbone.has_own_kernels = False

    def __call__(self, compute: Callable[[Callable[..., Any]], Found]) -> Found:
        """Return what `compute` makes of the function: terms, and more. The first call tries both forms of it."""
        if not self.wanted:
            return compute(self.function)
        if self.tried:
            return compute(self._compiled)
        started = time.monotonic()
        say("metavib: compiling the step; this takes up to a few minutes, once (--compile off does without).")
        try:
            with _quietly(), at_most(self.longest):
                found = compute(self._compiled)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            self.give_up(first_line(getattr(error, "inner_exception", None) or error)[:200])
            return compute(self.function)
        expected = compute(self.function)
        if differing := self._differing(found[0], expected[0]):
            self.give_up(differing)
            return expected
        self.tried = True
        _TRIED.add(self.kind)
        say(f"metavib: the step was compiled in {duration(time.monotonic() - started)}.")
        return found

    def give_up(self, why: str) -> None:
        """Go on with the function as it is."""
        self.wanted = False
        _FAILED.add(self.kind)
        backbone = self.algorithm.backbone
        backbone.has_own_kernels = type(backbone).has_own_kernels
        say(f"metavib: the step is not compiled and stays eager, slower: {why}")

    @functools.cached_property
    def _compiled(self) -> Callable[..., Any]:
        # Sizes never change. Our own CUDA graph holds the optimizer too, so inductor makes none.
        function = _copy_for(self.function, *_shape_of(self.algorithm))
        return torch.compile(function, dynamic=False, backend=self.backend)

    def _differing(self, found: NamedTensors, expected: NamedTensors) -> str | None:
        """Which losses are others than the eager ones, beyond rounding."""
        most = TOLERANCE[self.algorithm.backbone.precision]
        for name, value in expected.items():
            if not torch.allclose(found[name], value, rtol=most, atol=most, equal_nan=True):
                one, other = found[name].flatten()[0].item(), value.flatten()[0].item()
                return f"its {name} would be {one:.4g}, not {other:.4g}."
        return None


def of_step(algorithm: Algorithm, runs: int, sizes: tuple[Any, ...], wanted: bool) -> Compiled:
    """The losses of one run, or the losses and gradients of stacked ones."""
    function = losses if runs == 1 else stacked_gradients
    return Compiled(function, algorithm, wanted=wanted, sizes=(runs, *sizes))


def _shape_of(algorithm: Algorithm) -> tuple[Any, ...]:
    """The key of a compiled function: algorithms with the same key share it."""
    shapes = tuple((name, tuple(value.shape)) for name, value in algorithm.named_parameters())
    return type(algorithm), hash(shapes)


@functools.cache
def _copy_for(function: Callable[..., Any], *shape: Any) -> Callable[..., Any]:
    """A copy of the function for algorithms of this shape.

    torch keeps what it compiles by the function's code, and gives up after a few kinds of arguments.
    """
    assert isinstance(function, types.FunctionType)
    code = function.__code__.replace(co_name=f"{function.__name__}_{abs(hash(shape)):x}")
    return types.FunctionType(code, function.__globals__, closure=function.__closure__)


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise `TooLong` inside after so many seconds; where no alarm can be set there is no limit.

    The alarm belongs to the main thread, and to whoever has set one already.
    """
    alarm = getattr(signal, "SIGALRM", None)
    in_main = threading.current_thread() is threading.main_thread()
    if alarm is None or not in_main or signal.getsignal(alarm) != signal.SIG_DFL:
        yield
        return

    def ring(*_: object) -> None:
        raise TooLong(f"the compiler took longer than {duration(seconds)}.")

    signal.signal(alarm, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 5.0)  # again, should the first be swallowed
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(alarm, signal.SIG_DFL)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without the compiler's advice to developers."""
    loggers = [logging.getLogger(name) for name in ("torch._dynamo", "torch._inductor")]
    former = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, former, strict=True):
            logger.setLevel(level)
