"""How cost grows with images, classes and domains, beside what the cost model predicts: `--scaling`.

Images are of 8 x 8 pixels and the network is one layer, so that nothing hides what grows. Points of one axis take
turns, and the median counts. A prediction is made of constants that were measured by themselves (`constants_of`),
or of one or two points of its own axis, which are marked: there it agrees because it must.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.cost_model import Constants, Sizes, Work, erm_step, line_through, metavib_step, point
from benchmarks.synthetic import Synthetic, run_on, speck_is_known
from benchmarks.timing import milliseconds
from benchmarks.workloads import digit_runs, image_run
from metavib.algorithms import ALGORITHMS, title_of
from metavib.data.opening import Sources
from metavib.models.measuring import Embedded, embed, measure_at_mean, predict
from metavib.nn.functional.gaussian import Gaussian
from metavib.nn.functional.predictive import class_logits, log_softmax_of_classes
from metavib.nn.randomness import normal
from metavib.runs.capacity import Alive
from metavib.training.optimizer import Optimizer, Training
from metavib.training.step import Program, Trainee, sampler_of

IMAGES = (1_000, 10_000, 100_000, 1_000_000)
CLASSES = (7, 100, 1_000, 10_000)
DOMAINS = (3, 10, 30, 100)
DIVIDED = {
    "digits": 256,
    "photographs": 8,
}  # images of a domain, as `experiments/processes_speed.py` has them
PER_DOMAIN = [name for name, kind in ALGORITHMS.items() if kind.PER_DOMAIN]


def scaling(
    device: torch.device,
    *,
    images: Sequence[int] = IMAGES,
    classes: Sequence[int] = CLASSES,
    domains: Sequence[int] = DOMAINS,
    divided: Mapping[str, int] = DIVIDED,
    rounds: int = 7,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """The constants, and predicted and measured points along each axis."""
    with speck_is_known():
        tell("constants")
        constants, of_erm = constants_of(device, rounds)
        points = []
        for axis, sizes, measure in (
            ("images", images, along_images),
            ("classes", classes, along_classes),
            ("domains", domains, along_domains),
        ):
            tell(f"{axis}: {', '.join(f'{size:,}' for size in sizes)}")
            points += measure(sizes, {"metavib": constants, "erm": of_erm}, device, rounds)
    tell("the network's share of a step")
    shares = network_shares(device, rounds, divided)
    nanoseconds = {name: 1e9 * value for name, value in vars(constants).items()}
    nanoseconds["step_of_erm"] = 1e9 * of_erm.step
    return {"constants_ns": nanoseconds, "network_share": shares, "points": points}


# --- constants --------------------------------------------------------------------------------------------


def constants_of(device: torch.device, rounds: int) -> tuple[Constants, Constants]:
    """Each from a piece of a step by itself, large enough that its own start does not count.

    Of MetaVIB and of ERM, which differ in how many operators a step calls.
    """
    sizes = Sizes(classes=192)
    small = {"images_per_domain": 1, "domains_per_episode": 2, "latent_width": 1}
    least = {name: run_on(Synthetic(40, 2, 4), name, device, **small)[0] for name in ("metavib", "erm")}
    many, _ = run_on(Synthetic(4_000, 7, 4), "erm", device, images_per_domain=1_024)
    left = torch.randn(sizes.draws * 192, sizes.width, device=device)
    right = torch.randn(sizes.width, sizes.draws * sizes.images, device=device)
    key = torch.zeros(1, dtype=torch.int64, device=device)
    shape = (sizes.draws, 512, sizes.width)
    of_each = Gaussian(*(torch.zeros(shape[1:], device=device, requires_grad=True) for _ in range(2)))
    classifiers = torch.randn(sizes.draws, 192, sizes.width, device=device)
    codes = torch.randn(sizes.draws, sizes.images, sizes.width, device=device)
    logits = class_logits(classifiers, codes).detach().requires_grad_()
    weights = torch.zeros(1, 2**20, device=device)
    optimizer = Optimizer({"weights": weights}, (), [Training()])
    counter, terms = torch.zeros((), dtype=torch.int64, device=device), torch.zeros(1, 1, device=device)

    works: dict[str, tuple[Callable[[], object], int]] = {
        "image": (network_of(many), 3 * 1_024),
        "product": (lambda: left @ right, 2 * left.numel() * right.shape[1]),
        "draw": (lambda: of_each.sample(normal(key, shape)[0]).sum().backward(), int(np.prod(shape))),
        "logit": (lambda: log_softmax_of_classes(logits)[..., 0].sum().backward(), logits.numel()),
        "parameter": (lambda: optimizer.step(counter, terms, {"weights": weights}), weights.numel()),
    }
    timed = {name: work for name, (work, _) in works.items()}
    timed |= {
        name: Program([run]).step for name, run in least.items()
    }  # calls everything, and has little to do
    times = milliseconds(timed, device, rounds=rounds, repeats=5)
    each = {name: times[name] / 1000 / count for name, (_, count) in works.items()}
    return Constants(step=times["metavib"] / 1000, **each), Constants(step=times["erm"] / 1000, **each)


def network_of(run: Trainee) -> Callable[[], None]:
    """What is divided among processes: images are fetched, prepared and passed through the network and back."""
    sampler, network = sampler_of([run]), run.algorithm.backbone

    def work() -> None:
        network.zero_grad(set_to_none=True)
        episode = sampler.episode(sampler.drawn(0), 0)
        network(torch.cat([samples.images[0].flatten(0, 1) for samples in episode])).sum().backward()

    return work


def network_shares(device: torch.device, rounds: int, images: Mapping[str, int]) -> dict[str, float]:
    """What part of a step of MetaVIB that is, for the two networks that `experiments/processes_speed.py` has."""
    runs = {
        "digits": digit_runs(1, "metavib", images["digits"], device)[0],
        "photographs": image_run("metavib", images["photographs"], device),
    }
    shares = {}
    for name, run in runs.items():
        works = {"step": Program([run]).step, "network": network_of(run)}
        times = milliseconds(works, device, rounds=rounds, repeats=1, warm_up=2)
        shares[name] = times["network"] / times["step"]
    return shares


# --- axes -------------------------------------------------------------------------------------------------


def along_images(
    sizes: Sequence[int], constants: Mapping[str, Constants], device: torch.device, rounds: int
) -> list[dict[str, Any]]:
    """A step and a draw must not grow; opening, class means and validation grow as the images do."""
    works: dict[str, dict[int, Callable[[], object]]] = {
        "a step of MetaVIB": {},
        "the draw of an episode": {},
    }
    passes: dict[str, dict[int, float]] = {name: {} for name in ("opening", "class means", "validation")}
    for size in sizes:
        run, opened = run_on(Synthetic(size * 5 // 4, 10, 5), "metavib", device)
        program = Program([run])
        works["a step of MetaVIB"][size] = program.step
        works["the draw of an episode"][size] = partial(program.sampler.drawn, 0)
        passes["opening"][size] = 1000 * opened
        sources, algorithm = run.sources, run.algorithm
        passes["class means"][size] = 1000 * _seconds(partial(algorithm.absorb, sources.train.batches()))
        passes["validation"][size] = 1000 * _seconds(partial(_validate, algorithm, sources))
    points = _flat("images", works, device, rounds)
    for what, measured in passes.items():
        points += _linear("images", what, measured)
    return points


def along_classes(
    sizes: Sequence[int], constants: Mapping[str, Constants], device: torch.device, rounds: int
) -> list[dict[str, Any]]:
    """Steps by the constants. Predictions grow with the classes, and opening, which draws for each of them."""
    steps: dict[str, dict[int, Callable[[], object]]] = {"metavib": {}, "erm": {}}
    draws: dict[int, Callable[[], object]] = {}
    predictions: dict[int, Callable[[], object]] = {}
    opening, works, held = {}, {}, {}
    formulas: dict[str, Callable[[Sizes], Work]] = {"metavib": metavib_step, "erm": erm_step}
    for size in sizes:
        dataset = Synthetic(16 * max(sizes), size, 4)
        for algorithm, own in steps.items():
            run, opened = run_on(dataset, algorithm, device)
            program = Program([run])
            parameters = sum(own.numel() for own in run.algorithm.backbone.parameters())
            works[algorithm, size] = formulas[algorithm](Sizes(size, network_parameters=parameters))
            own[size] = program.step
            held[algorithm, size] = _held(run)
            if algorithm == "metavib":
                opening[size] = 1000 * opened
                draws[size] = partial(program.sampler.drawn, 0)
                features = torch.randn(32, run.algorithm.backbone.feature_size, device=device)
                some = Embedded(features, torch.zeros(32, dtype=torch.int64, device=device))
                predictions[size] = partial(predict, run.algorithm, some, 0, 0)
    points = []
    for algorithm, own in steps.items():
        title = title_of(algorithm)
        for size, value in _timed(own, device, rounds).items():
            predicted = 1000 * constants[algorithm].seconds(works[algorithm, size])
            points.append(point("classes", f"a step of {title}", size, predicted, value, fitted=False))
        for size in sizes:
            whole, of_network = held[algorithm, size]
            predicted = (of_network + 4 * works[algorithm, size].held) / 1e6
            what = f"memory of the losses of {title}"
            points.append(point("classes", what, size, predicted, whole / 1e6, fitted=False, unit="MB"))
    points += _flat("classes", {"the draw of an episode": draws}, device, rounds)
    points += _linear("classes", "opening", opening)
    return points + _linear("classes", "32 predictions", _timed(predictions, device, rounds, repeats=1))


def along_domains(
    sizes: Sequence[int], constants: Mapping[str, Constants], device: torch.device, rounds: int
) -> list[dict[str, Any]]:
    """Episodes have three of the domains: steps grow only where a method has parameters for each domain."""
    points: list[dict[str, Any]] = []
    opening: dict[int, float] = {}
    datasets = {size: Synthetic(400 * (max(sizes) + 1), 10, size + 1) for size in sizes}
    for algorithm in ("metavib", "erm", *PER_DOMAIN):
        steps: dict[int, Callable[[], object]] = {}
        for size, dataset in datasets.items():
            run, opening[size] = run_on(dataset, algorithm, device)
            steps[size] = Program([run]).step
            opening[size] *= 1000
        title = f"a step of {title_of(algorithm)}"
        if algorithm in PER_DOMAIN:
            points += _linear("domains", title, _timed(steps, device, rounds, repeats=2))
        else:
            points += _flat("domains", {title: steps}, device, rounds)
    every = {}
    for size, dataset in datasets.items():
        wide = {"domains_per_episode": size, "images_per_domain": 16, "roles": "every"}
        every[size] = Program([run_on(dataset, "metavib", device, **wide)[0]]).step
    title = "a step of MetaVIB, all domains in turn meta-test"
    points += _linear("domains", title, _timed(every, device, rounds, repeats=1))
    return points + _linear("domains", "opening", opening)


def _flat(
    axis: str,
    works: Mapping[str, Mapping[int, Callable[[], object]]],
    device: torch.device,
    rounds: int,
) -> list[dict[str, Any]]:
    found = []
    for what, own in works.items():
        found += _constant(axis, what, _timed(own, device, rounds))
    return found


def _constant(axis: str, what: str, measured: Mapping[int, float]) -> list[dict[str, Any]]:
    """Predicted to stay as it is at the smallest size."""
    known = min(measured)
    return [
        point(axis, what, size, measured[known], value, fitted=size == known)
        for size, value in measured.items()
    ]


def _linear(axis: str, what: str, measured: Mapping[int, float]) -> list[dict[str, Any]]:
    """Predicted by the line through the first and the last but one."""
    sizes = sorted(measured)
    known = {sizes[0], sizes[max(1, len(sizes) - 2)]} if len(sizes) > 1 else set(sizes)
    low, high = min(known), max(known)
    line = line_through((low, measured[low]), (high, measured[high])) if len(known) > 1 else None
    return [
        point(axis, what, size, line.at(size) if line else value, value, fitted=size in known)
        for size, value in measured.items()
    ]


def _timed(
    works: Mapping[int, Callable[[], object]], device: torch.device, rounds: int, repeats: int = 5
) -> dict[int, float]:
    named = {str(size): work for size, work in works.items()}
    times = milliseconds(named, device, rounds=rounds, repeats=repeats, warm_up=2)
    return {int(size): value for size, value in times.items()}


def _held(run: Trainee) -> tuple[int, int]:
    """Bytes that the losses of a run hold at most, and what of it the network alone does."""
    sampler, key = sampler_of([run]), torch.zeros((), dtype=torch.int64)
    episode = sampler.draw(0)
    shapes = run.algorithm.noise_shapes((sampler.domains - 1) * sampler.images, sampler.images)
    noise = {name: normal(key.to(sampler.device), shape) for name, shape in shapes.items()}
    with Alive() as whole:
        run.algorithm(episode, noise)
    with Alive() as of_network:
        run.algorithm.backbone(episode.all_domains().flat_images())
    return whole.most, of_network.most


def _validate(algorithm: Any, sources: Sources) -> None:
    measure_at_mean(algorithm, embed(algorithm, sources.validation.batches()))


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
