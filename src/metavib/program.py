"""The training step: draws, losses, gradients and update, for one run or for many stacked along a leading axis.

On a GPU the step is captured in a CUDA graph once it has run a few times: then a step is one launch, and neither
Python nor the host takes part in it. It counts its own steps on the device, and everything that it needs of a step
(draws, learning rates) follows from that number.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap
from torch.utils._pytree import tree_map

from metavib.algorithms.base import Algorithm, Noise
from metavib.averaging import average_of
from metavib.data.episodes import Drawn, Episode, EpisodeSampler
from metavib.data.prefetch import Prefetcher
from metavib.data.prepared import Sources
from metavib.experiment import Experiment
from metavib.networks.backbone import divided
from metavib.optimization import Optimizer
from metavib.processes.division import Division
from metavib.processes.group import ALONE, Processes
from metavib.randomness import fold, key_of, normal
from metavib.terminal import say

EAGER_STEPS = 3  # before the capture: libraries choose and load their kernels in the first ones


@dataclass(frozen=True)
class Trainee:
    """One run of a program: what is trained, on what, and by which settings."""

    experiment: Experiment
    algorithm: Algorithm
    sources: Sources


class Program:
    """The steps of one or many runs. What stacked runs may differ in: `cells.stack_key`."""

    def __init__(
        self, trainees: Sequence[Trainee], *, capture: bool = True, processes: Processes = ALONE
    ) -> None:
        """`processes` share the images of a step of one run."""
        first = trainees[0]
        assert processes.size == 1 or len(trainees) == 1
        self.processes = processes
        settings = first.experiment.training
        self.division = processes.division(
            settings.images_per_domain, whole_images=first.algorithm.WHOLE_IMAGES
        )
        self.algorithms = [trainee.algorithm for trainee in trainees]
        seeds = [trainee.experiment.seed for trainee in trainees]
        self.sampler = sampler_of(trainees, self.division)
        for trainee in trainees:
            # By itself, so that a run begins in a stack as it begins alone.
            with divided(trainee.algorithm.backbone, self.division):
                trainee.algorithm.begin(sampler_of([trainee], self.division).draw(0))
        self.device = self.sampler.device
        self.noise_shapes = first.algorithm.noise_shapes(
            (self.sampler.domains - 1) * self.sampler.images, self.sampler.images
        )
        self.noise_keys = {
            purpose: torch.tensor([key_of(seed, "noise", purpose) for seed in seeds], device=self.device)
            for purpose in self.noise_shapes
        }
        self.parameters = _stacked_parameters(self.algorithms)
        self.optimizer = Optimizer(
            self.parameters,
            {name for name in self.parameters if name.startswith(first.algorithm.BACKBONES)},
            [trainee.experiment.training for trainee in trainees],
            first.algorithm.APART,
        )
        self.average = average_of(settings.average, settings.average_decay, self.parameters)
        self.buffers = {
            name: torch.stack([dict(a.named_buffers())[name] for a in self.algorithms])
            for name, _ in first.algorithm.named_buffers()
        }
        # An algorithm that trains in stages reads there which share of the steps is done.
        places = [dict(algorithm.named_buffers()) for algorithm in self.algorithms] + [self.buffers]
        self.progress = [buffers["progress"] for buffers in places if "progress" in buffers]
        self.counter = torch.zeros((), dtype=torch.int64, device=self.device)  # the next step
        self.steps, self.done = settings.steps, 0
        self.terms: dict[str, Tensor] = {}  # of the last step, [runs] each
        self.capture = capture and self.device.type == "cuda" and processes.size == 1
        self.graph: torch.cuda.CUDAGraph | None = None
        self.eager = 0
        self.prefetcher: Prefetcher | None = None
        self.drawn: Drawn | None = None  # where images that do not fit on the device arrive

    def start(self, step: int) -> None:
        """Go on from this step."""
        self.done = step
        self.counter.fill_(step)

    def step(self) -> None:
        """One step of every run."""
        if not self.sampler.store.resident:
            self._fetch()
        with _convolutions_tried():
            if not self.capture:
                self._step()
            elif self.graph is not None:
                self.graph.replay()
            elif self.eager < EAGER_STEPS:
                with _side_stream(self.device):
                    self._step()
                self.eager += 1
            else:
                self._capture()
        self.done += 1

    def _capture(self) -> None:
        """Record the step, which does not run it, and run it. Where it cannot be recorded it stays eager."""
        graph = torch.cuda.CUDAGraph()
        try:
            with _nothing_freed(), torch.cuda.graph(graph):
                self._step()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            say(
                f"metavib: the step cannot be a CUDA graph and stays eager, slower: {str(error).splitlines()[0]}"
            )
            self.capture = False
            self._step()
            return
        self.graph = graph
        graph.replay()

    def values(self) -> dict[str, list[float]]:
        """The terms of the last step, run by run. This waits for the device."""
        table = torch.stack(list(self.terms.values())).tolist()
        return dict(zip(self.terms, table, strict=True))

    def _step(self) -> None:
        drawn = self.drawn if self.drawn is not None else self.sampler.drawn(self.counter)
        episode = self.sampler.episode(drawn, self.counter)
        noise = {
            name: normal(fold(key, self.counter), self.noise_shapes[name])
            for name, key in self.noise_keys.items()
        }
        for place in self.progress:
            place.copy_(self.counter / self.steps)
        if len(self.algorithms) == 1:
            with divided(self.algorithms[0].backbone, self.division):
                terms, gradients = self._gradients_alone(episode, noise)
            terms, gradients = self._as_first(terms, gradients)
        else:
            terms, gradients = self._gradients_stacked(episode, noise)
        self.optimizer.step(self.counter, torch.stack(list(terms.values()), dim=-1), gradients)
        self.average.update(self.counter, self.optimizer.held)
        self.counter += 1
        if not self.terms:
            self.terms = {name: torch.empty_like(value) for name, value in terms.items()}
        for name, value in terms.items():
            self.terms[name].copy_(value)

    def _gradients_alone(self, episode: Episode, noise: Noise) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        algorithm = self.algorithms[0]
        own_episode, own_noise = tree_map(lambda values: values[0], (episode, noise))
        terms = algorithm(own_episode, own_noise)
        algorithm.zero_grad(set_to_none=True)
        torch.stack(list(terms.values())).sum().backward()
        gradients = {
            name: (torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).unsqueeze(0)
            for name, parameter in algorithm.named_parameters()
        }
        return {name: value.detach().unsqueeze(0) for name, value in terms.items()}, gradients

    def _as_first(
        self, terms: dict[str, Tensor], gradients: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What every process computed for itself, as the first one did: machines differ in rounding.

        The backbones' gradients are sums over the processes, and alike already.
        """
        heads = {n: g for n, g in gradients.items() if not n.startswith(self.algorithms[0].BACKBONES)}
        agreed = self.processes.as_first([*terms.values(), *heads.values()])
        of_terms, of_heads = agreed[: len(terms)], agreed[len(terms) :]
        return dict(zip(terms, of_terms, strict=True)), gradients | dict(zip(heads, of_heads, strict=True))

    def _gradients_stacked(
        self, episode: Episode, noise: Noise
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        def objective(parameters: Any, buffers: Any, episode: Episode, noise: Noise) -> tuple[Tensor, Any]:
            terms = functional_call(self.algorithms[0], (parameters, buffers), (episode, noise))
            return torch.stack(list(terms.values())).sum(), terms

        gradients, (_, terms) = vmap(grad_and_value(objective, has_aux=True))(
            self.parameters, self.buffers, episode, noise
        )
        return terms, gradients

    def _fetch(self) -> None:
        """Bring the images of the next step to the device, from where a thread has read them ahead."""
        if self.prefetcher is None or self.prefetcher.next_step != self.done:
            self.prefetcher = Prefetcher(self.sampler, self.done, self.steps)
        arrived = self.prefetcher.next()
        if self.device.type == "cpu":
            self.drawn = arrived
            return
        if self.drawn is None:
            self.drawn = Drawn(*(torch.empty_like(values, device=self.device) for values in arrived))
        for place, values in zip(self.drawn, arrived, strict=True):
            place.copy_(values, non_blocking=True)
        self.prefetcher.sent()


def sampler_of(trainees: Sequence[Trainee], division: Division | None = None) -> EpisodeSampler:
    """What draws the episodes of these runs; `division`: only this process's own images of them."""
    experiment = trainees[0].experiment
    if division is not None and division.whole_images:
        division = None
    return EpisodeSampler(
        [trainee.sources.train for trainee in trainees],
        [trainee.experiment.seed for trainee in trainees],
        domains_per_episode=experiment.training.domains_per_episode,
        images_per_domain=experiment.training.images_per_domain,
        class_balanced=experiment.training.class_balanced,
        augmentation=experiment.augmentation,
        paired=trainees[0].algorithm.PAIRED,
        lends=trainees[0].algorithm.SPLITS_DOMAINS,
        division=division,
    )


def _stacked_parameters(algorithms: Sequence[Algorithm]) -> dict[str, Tensor]:
    """The parameters of all runs, [runs, ...] each; the modules' own become views of them."""
    if len(algorithms) == 1:
        return {name: parameter.detach().unsqueeze(0) for name, parameter in algorithms[0].named_parameters()}
    everyone = [dict(algorithm.named_parameters()) for algorithm in algorithms]
    stacked = {name: torch.stack([own[name].detach() for own in everyone]) for name in everyone[0]}
    for run, own in enumerate(everyone):
        for name, parameter in own.items():
            parameter.data = stacked[name][run]
    return stacked


@contextlib.contextmanager
def _convolutions_tried() -> Iterator[None]:
    """Let cuDNN try out what is fast: the sizes of a step never change.

    Those of validation do, from batch to batch: trying would take longer there than computing.
    """
    former, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = former


@contextlib.contextmanager
def _nothing_freed() -> Iterator[None]:
    """Keep Python from clearing away an earlier program while a step is recorded: freeing a graph would crash.

    Torch itself collected here until 2.8 (github.com/pytorch/pytorch/pull/161037).
    """
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@contextlib.contextmanager
def _side_stream(device: torch.device) -> Iterator[None]:
    """What is to be captured runs on another stream first, as CUDA graphs want it."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)
