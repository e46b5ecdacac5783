"""Averaged weights, for every algorithm: none, ema, sma or swad.

`ema` is the exponential moving average of the weights, one step after another (Polyak and Juditsky 1992).

`sma` is the mean of the weights of all steps but the first tenth (Arpit et al., "Ensemble of averages", NeurIPS
2022, where it is all but 100 steps of 5,000). Like `ema` it is validated and selected in place of the weights.

`swad` is SWAD (Cha et al., "Domain generalization by seeking flat minima", NeurIPS 2021): the mean of the weights
of all steps within the valley of the source validation loss. The valley begins at the validation whose loss the
next two do not go below (the best of N_s = 3), and ends before the first of N_e = 6 validations in a row whose
losses are above r = 1.3 times the mean loss of those first three; there training ends too. Where the loss falls to
the very end, the mean is that of the steps since the last validation but one.
"""

import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import final

import torch
from torch import Tensor

OPTIMUM_PATIENCE = 3  # N_s
OVERFIT_PATIENCE = 6  # N_e
TOLERANCE = 1.3  # r

LEFT_OUT = 0.1  # of the steps, before the simple moving average begins

AVERAGES = ("none", "ema", "sma", "swad")


class ValleyState(Enum):
    """Where a validation finds a run."""

    BEFORE = "before"  # the loss still falls
    ENTERED = "entered"  # the valley began OPTIMUM_PATIENCE validations ago
    INSIDE = "inside"
    DOUBTFUL = "doubtful"  # above the tolerance, perhaps for good
    LEFT = "left"  # for OVERFIT_PATIENCE validations in a row


@dataclass
class Valley:
    """The valley of one run's validation loss, as far as it is known. Segments lie between validations."""

    losses: list[float] = field(default_factory=list)  # of the last validations before the valley
    lengths: list[int] = field(default_factory=list)  # steps in the segments that ended with them
    step: int = 0  # of the last validation
    threshold: float | None = None  # once the valley has begun
    above: int = 0  # validations in a row above the threshold
    inside: int = 0  # steps known to be in the valley
    waiting: int = 0  # steps since, that are in it if the loss comes down again

    def observe(self, step: int, loss: float) -> ValleyState:
        """Take the loss of one more validation, and return where the run stands."""
        length, self.step = step - self.step, step
        if self.threshold is None:
            self.losses = [*self.losses, loss][-OPTIMUM_PATIENCE:]
            self.lengths = [*self.lengths, length][-OPTIMUM_PATIENCE:]
            if len(self.losses) < OPTIMUM_PATIENCE or self.losses[0] > min(self.losses):
                return ValleyState.BEFORE
            self.threshold = TOLERANCE * sum(self.losses) / OPTIMUM_PATIENCE
            self.inside = sum(self.lengths)
            return ValleyState.ENTERED
        if loss <= self.threshold:
            self.inside, self.waiting, self.above = self.inside + self.waiting + length, 0, 0
            return ValleyState.INSIDE
        self.waiting, self.above = self.waiting + length, self.above + 1
        if self.above < OVERFIT_PATIENCE:
            return ValleyState.DOUBTFUL
        self.waiting = 0
        return ValleyState.LEFT


class WeightAverage(ABC):
    """Averages of the weights of stacked runs; parameters have the runs along their first axis."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.parameters = dict(parameters)
        self.tensors: dict[str, dict[str, Tensor]] = {}  # by kind and parameter; a checkpoint holds them

    def state(self) -> dict[str, Tensor]:
        """All that a checkpoint must hold."""
        return {f"{kind}/{name}": value for kind, own in self.tensors.items() for name, value in own.items()}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        for name, value in self.state().items():
            value.copy_(tensors[name])

    @abstractmethod
    def update(self, step: Tensor, held: Tensor) -> None:
        """Take in the weights after a step, those of held runs excepted. On the device, and never waits for it."""

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The parameters hold the weights to validate, then again those to train."""
        yield

    def validated(self, run: int, valley: Valley, step: int, loss: float) -> bool:
        """Take note of a run's validation loss; whether it goes on."""
        return True

    def next_segment(self) -> None:  # noqa: B027  # only swad has segments
        """All runs have been validated: a new segment begins."""

    def chosen(self, run: int, valley: Valley) -> dict[str, Tensor] | None:
        """The run's weights in the end; None where they are the parameters, or what the selection rule kept."""
        return None

    def _add_kind(self, kind: str, *, as_parameters: bool = False) -> dict[str, Tensor]:
        make = torch.clone if as_parameters else torch.zeros_like
        self.tensors[kind] = {name: make(value) for name, value in self.parameters.items()}
        return self.tensors[kind]


@final
class NoAverage(WeightAverage):
    """The weights as they are."""

    def update(self, step: Tensor, held: Tensor) -> None:
        """Do nothing: no average is kept."""


@final
class MovingAverage(WeightAverage):
    """ema and sma: validated, selected and kept in place of the weights."""

    def __init__(
        self, parameters: Mapping[str, Tensor], kind: str, share: Callable[[Tensor], Tensor]
    ) -> None:
        """`share`: what the weights after a step count for in the average, 1 for those alone."""
        super().__init__(parameters)
        self.share = share
        self.average = self._add_kind(kind, as_parameters=True)

    @torch.no_grad()
    def update(self, step: Tensor, held: Tensor) -> None:
        share = self.share(step)
        for name, value in self.parameters.items():
            self.average[name].lerp_(value, _along(share * (1.0 - held), value))

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        trained = {name: value.clone() for name, value in self.parameters.items()}
        self._fill(self.average)
        try:
            yield
        finally:
            self._fill(trained)

    def chosen(self, run: int, valley: Valley) -> dict[str, Tensor] | None:
        return {name: value[run] for name, value in self.average.items()}

    @torch.no_grad()
    def _fill(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self.parameters.items():
            parameter.copy_(values[name])


@final
class Swad(WeightAverage):
    """swad: sums of the weights, segment by segment."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__(parameters)
        self.segment = self._add_kind("swad_segment")
        # The segments before this one, the newest first: a valley is known only when it has begun.
        self.former = [self._add_kind(f"swad_former_{age}") for age in range(1, OPTIMUM_PATIENCE)]
        self.inside = self._add_kind("swad_inside")
        self.waiting = self._add_kind("swad_waiting")

    @torch.no_grad()
    def update(self, step: Tensor, held: Tensor) -> None:
        for name, value in self.parameters.items():
            self.segment[name].addcmul_(value, _along(1.0 - held, value))

    @torch.no_grad()
    def validated(self, run: int, valley: Valley, step: int, loss: float) -> bool:
        state = valley.observe(step, loss)
        for name, segment in self.segment.items():
            inside, waiting = self.inside[name][run], self.waiting[name][run]
            if state is ValleyState.ENTERED:
                inside.copy_(segment[run])
                for former in self.former:
                    inside.add_(former[name][run])
            elif state is ValleyState.INSIDE:
                inside.add_(waiting).add_(segment[run])
                waiting.zero_()
            elif state is ValleyState.DOUBTFUL:
                waiting.add_(segment[run])
            elif state is ValleyState.LEFT:
                waiting.zero_()
        return state is not ValleyState.LEFT

    @torch.no_grad()
    def next_segment(self) -> None:
        for name, segment in self.segment.items():
            newest_last = [*reversed(self.former), self.segment]
            for older, newer in itertools.pairwise(newest_last):
                older[name].copy_(newer[name])
            segment.zero_()

    def chosen(self, run: int, valley: Valley) -> dict[str, Tensor] | None:
        if valley.threshold is not None:
            steps = valley.inside + valley.waiting
            return {name: (self.inside[name][run] + self.waiting[name][run]) / steps for name in self.inside}
        if valley.lengths:
            return {name: value[run] / valley.lengths[-1] for name, value in self.former[0].items()}
        return None  # never validated


def exponential(decay: float) -> Callable[[Tensor], Tensor]:
    """1 - decay; more in the first steps, so that the first weights of all do not linger."""
    return lambda step: 1.0 - ((step + 1) / (step + 10)).clamp_max(decay)


def simple(steps: int) -> Callable[[Tensor], Tensor]:
    """One over the number of steps since the first tenth."""
    first = int(LEFT_OUT * steps)
    return lambda step: 1.0 / (step - first + 1).clamp_min(1)


def average_of(name: str, decay: float, parameters: Mapping[str, Tensor], steps: int) -> WeightAverage:
    """The average of this name (`AVERAGES`), over so many steps."""
    if name == "ema":
        return MovingAverage(parameters, name, exponential(decay))
    if name == "sma":
        return MovingAverage(parameters, name, simple(steps))
    return Swad(parameters) if name == "swad" else NoAverage(parameters)


def _along(runs: Tensor, like: Tensor) -> Tensor:
    """One number a run, so that it meets a tensor [runs, ...]."""
    return runs.view(-1, *[1] * (like.dim() - 1))
