"""From arrays in memory to a trained network, and from its plain arrays back to the network."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from metavib.algorithms import algorithm_named, create
from metavib.algorithms.base import Algorithm
from metavib.core.errors import UserError, unknown_name
from metavib.core.memory import is_shortage
from metavib.core.settings import Settings, changed, names_of, setting
from metavib.data.arrays import (
    channels_first,
    features_as_pixels,
    images_as_pixels,
    random_domains,
    sources_of,
)
from metavib.models.directory import preprocessing_of
from metavib.nn.backbone import Backbone
from metavib.nn.backbones import BACKBONES
from metavib.nn.mlp import MLP
from metavib.nn.networks import FORMS, network_named
from metavib.nn.own_network import Given, OwnNetwork, own_network
from metavib.nn.randomness import key_of
from metavib.training.experiment import Experiment
from metavib.training.first_network import initial_algorithm
from metavib.training.optimizer import NonFiniteError
from metavib.training.step import Program, Trainee

FEATURES = "mlp"  # the backbone of features; all others take images
READ = 100  # times that the losses are read, evenly spread over the steps

# Arrays have no validation part: a fit keeps the last model.
PLAY_NO_PART = {
    *(
        "validation_share",
        "validations",
        "patience",
        "selection",
        "average",
        "average_decay",
        "record_information",
        "frozen",
        "views",
    ),
    "images_per_domain",  # `samples_per_domain` has its place
}

History = dict[str, list[float]]  # the step, and each term of the loss
Show = Callable[[int, dict[str, float]], None]


@dataclass(frozen=True)
class EstimatorSettings(Settings):
    """Settings of the estimator beyond the package's."""

    hidden_width: int = setting(128, "width of the backbone of features", minimum=1)
    pseudo_domains: int = setting(3, "random domains where none are known", minimum=2)
    samples_per_domain: int = setting(32, "samples of each domain in an episode", minimum=1)


def backbone_for(samples: np.ndarray, given: Given) -> str:
    """The name of the backbone that is given, checked; auto is what suits the samples."""
    features = samples.ndim == 2
    own = own_network(given)
    name = str(given) if own is None else own.name
    if name == "auto":
        if features:
            return FEATURES
        return "digits" if channels_first(samples).shape[1] == 1 else "squeezenet"
    if ":" not in name and name not in (FEATURES, *BACKBONES):
        raise unknown_name("backbone", name, (FEATURES, *BACKBONES, *FORMS))
    if features and name != FEATURES:
        raise UserError(f"X holds features [n, d], and {name} takes images: use backbone='{FEATURES}'.")
    if not features and name == FEATURES:
        raise UserError(
            f"X holds images, and {FEATURES} takes features [n, d]: give X.reshape(len(X), -1), or a network "
            "for images."
        )
    return name


def with_further(sections: dict[str, Settings], values: Mapping[str, Any]) -> dict[str, Settings]:
    """The settings with some changed by their names alone; those that would change nothing here are refused."""
    for name, value in values.items():
        owner = next((own for own, known in sections.items() if name in names_of(type(known))), None)
        if owner is None:
            known = [known for settings in sections.values() for known in names_of(type(settings))]
            raise unknown_name("setting", str(name), sorted(set(known) - PLAY_NO_PART))
        if name in PLAY_NO_PART:
            raise UserError(
                f"{name} plays no part in a fit of arrays, which keeps the last model: leave it out."
            )
        sections = sections | {owner: changed(sections[owner], {name: value}, owner)}
    return sections


def untrained(
    experiment: Experiment,
    samples: np.ndarray,
    classes: int,
    hidden_width: int,
    device: torch.device,
    domains: int = 0,
    own: OwnNetwork | None = None,
) -> Algorithm:
    """The network with its first weights, which depend on the seed alone."""
    if experiment.backbone != FEATURES:
        return initial_algorithm(experiment, classes, domains, device, own=own)
    if device.type == "mps":
        raise UserError("features are computed in float64, which an Apple GPU (mps) lacks: use device='cpu'.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key_of(experiment.seed, "initialisation") & 0x7FFFFFFFFFFFFFFF)
        try:
            network = MLP(samples.shape[1], hidden_width)
            algorithm = create(experiment.algorithm, network, classes, domains, experiment.method)
        except (MemoryError, RuntimeError) as error:
            if not is_shortage(error):
                raise
            raise UserError("the network does not fit into memory: lower its widths.") from error
    network.standardise_by(torch.from_numpy(np.array(samples, dtype=np.float64)))
    return algorithm.to(device)


def train(
    experiment: Experiment,
    algorithm: Algorithm,
    samples: np.ndarray,
    labels: np.ndarray,
    domains: np.ndarray,
    device: torch.device,
    show: Show = lambda step, terms: None,
) -> History:
    """Make all steps and leave the trained parameters in `algorithm`; the losses along the way."""
    pixels = as_pixels(samples, algorithm.backbone)
    preprocessing = preprocessing_of(algorithm.backbone)
    sources = sources_of(pixels, labels, domains, algorithm.classes, preprocessing, device)
    program = Program([Trainee(experiment, algorithm, sources)])
    every = max(1, program.steps // READ)
    history: History = {"step": []}
    while program.done < program.steps:
        with _quick_arithmetic(small=experiment.backbone == FEATURES):
            program.step()
        if program.done % every == 0 or program.done in program.ends:
            for problem in program.optimizer.failures(list(program.terms)).values():
                raise NonFiniteError(problem)
            terms = {name: by_run[0] for name, by_run in program.values().items()}
            for name, value in {"step": program.done, **terms}.items():
                history.setdefault(name, []).append(value)
            show(program.done, terms)
    algorithm.absorb(sources.train.batches())
    return history


@contextlib.contextmanager
def _quick_arithmetic(*, small: bool) -> Iterator[None]:
    """The smallest numbers count as zero, and small steps have one thread.

    Where samples are fitted well, gradients are full of such numbers, and a CPU takes several times as long.
    Threads would spend a small step waiting for one another, most of all where a grid search runs several fits.
    """
    flushed = (torch.tensor([1e-39]) * 1.0).item() == 0.0  # torch does not tell
    threads = torch.get_num_threads()
    torch.set_flush_denormal(True)
    if small:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_flush_denormal(flushed)
        torch.set_num_threads(threads)


def as_pixels(samples: np.ndarray, backbone: Backbone) -> np.ndarray:
    """Features or images as the backbone's store holds them."""
    if samples.ndim == 2:
        return features_as_pixels(samples)
    return images_as_pixels(samples, backbone.image_size, backbone.channels, backbone.interpolation)


def arrays_of(algorithm: Algorithm) -> dict[str, np.ndarray]:
    """The whole model as plain arrays by name."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in algorithm.state_dict().items()}


def rebuilt(
    record: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    classes: int,
    device: torch.device,
    domains: int = 0,
    own: OwnNetwork | None = None,
) -> Algorithm:
    """The trained network from its experiment, as plain values, and its arrays."""
    features = record["backbone"] == FEATURES
    method = algorithm_named(record["algorithm"]).Config(**record["method"])
    with torch.random.fork_rng(devices=[]):  # layers draw first weights, which are replaced at once
        backbone: Backbone
        if features:
            # Not from the weights: a method may keep them in factors.
            bias = next(values for name, values in arrays.items() if "hidden_1" in name and "bias" in name)
            backbone = MLP(len(arrays["backbone.centre"]), bias.shape[-1])
        else:
            backbone = network_named(record["backbone"], own).build(record.get("image_size"))
            if record["weights"] != "none":
                backbone.freeze_normalisation()
        algorithm = create(record["algorithm"], backbone, classes, domains, method)
    algorithm.load_state_dict({name: torch.tensor(values) for name, values in arrays.items()})
    if features:
        # scikit-learn compares answers to more digits than float32 keeps from one size of batch to another.
        algorithm.double()
    # Channels last, as in training.
    return algorithm.to(device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]


def named_domains(
    domains: ArrayLike | None, labels: np.ndarray, pseudo_domains: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """The names of the domains, and the number of each sample's."""
    from sklearn.utils.validation import check_consistent_length, column_or_1d

    if domains is None:
        count = min(pseudo_domains, len(labels))
        return np.arange(count), random_domains(labels, count, seed)
    given = column_or_1d(domains)
    check_consistent_length(labels, given)
    if any(name is None or str(name) == "nan" for name in given.tolist()):
        raise UserError("domains must not be missing.")
    try:
        names, numbers = np.unique(given, return_inverse=True)
    except TypeError as error:
        raise UserError("domains must all be text or all be numbers.") from error
    if len(names) < 2:
        raise UserError(
            f"all samples come from one domain, {names.tolist()[0]!r}: give two or more, or leave domains out."
        )
    return names, numbers


def require_finite(answers: np.ndarray) -> None:
    """NaN is not an answer, but argmax would name a class."""
    if not np.isfinite(answers).all():
        rows = np.flatnonzero(~np.isfinite(answers.reshape(len(answers), -1)).all(axis=1))
        raise UserError(
            f"the answers for {len(rows)} samples, the first at row {rows[0]}, are not finite: their values are "
            "too far from those of the training, or the weights were changed. Leave them out, or fit again."
        )


def numpy_of(values: torch.Tensor) -> np.ndarray:
    return values.cpu().numpy().astype(np.float64)
