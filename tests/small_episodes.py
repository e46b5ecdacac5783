"""Episodes of a few images for a smooth network, small enough for finite differences in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from benchmarks.workloads import trainee
from metavib.algorithms import create
from metavib.algorithms.base import Algorithm
from metavib.algorithms.erm import ERM
from metavib.data.episodes import Episode, Samples
from metavib.data.sources.catalog import open_dataset
from metavib.nn.backbone import PIXELS, Backbone
from metavib.training.step import Program

CLASSES, DOMAINS, IMAGES = 3, 3, 5


@final
class Smooth(Backbone):
    """Nine pixels to four features, with derivatives everywhere."""

    feature_size = 4
    image_size = 3
    channels = 1
    normalisation = PIXELS

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(9, 4)

    def extract(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Tensor:
        return self.layer(images.flatten(1)).tanh()


def built(kind: Any, *, domains: int = DOMAINS, seed: int = 0, **settings: Any) -> Any:
    """An algorithm on the smooth network, in float64."""
    torch.manual_seed(seed)
    counts = {"domains": domains} if kind.PER_DOMAIN else {}
    return kind(Smooth(), CLASSES, kind.Config(**settings), **counts).double()


def episode_of(domains: tuple[int, ...] = (1, 2, 0), *, seed: int = 0) -> Episode:
    """Random images and labels of these domains, the last of which is meta-test."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(len(domains), IMAGES, 1, 3, 3, dtype=torch.float64, generator=generator)
    labels = torch.randint(CLASSES, (len(domains), IMAGES), generator=generator)
    numbers = torch.tensor(domains)
    return Episode(
        Samples(images[:-1], labels[:-1], numbers[:-1]), Samples(images[-1:], labels[-1:], numbers[-1:])
    )


def erm_with_the_weights_of(algorithm: Algorithm) -> ERM:
    """ERM with the same backbone and classifier."""
    erm = create("erm", Smooth(), CLASSES, DOMAINS, ERM.Config()).double()
    own = algorithm.state_dict()
    erm.load_state_dict({name: own[name] for name in erm.state_dict()})
    assert isinstance(erm, ERM)
    return erm


def gradients(algorithm: Algorithm, value: Tensor) -> dict[str, Tensor]:
    """Of all parameters, zero where none arrives."""
    named = dict(algorithm.named_parameters())
    found = torch.autograd.grad(
        value, list(named.values()), allow_unused=True, retain_graph=True, materialize_grads=True
    )
    return dict(zip(named, found, strict=True))


def assert_is_erm(algorithm: Algorithm, terms: Mapping[str, Tensor], episode: Episode) -> None:
    """The classification term and all gradients of the shared network are ERM's on the same weights."""
    erm = erm_with_the_weights_of(algorithm)
    expected = erm.losses(episode, {})["classification"]
    torch.testing.assert_close(terms["classification"], expected, rtol=1e-14, atol=0)
    found = gradients(algorithm, torch.stack(list(terms.values())).sum())
    for name, gradient in gradients(erm, expected).items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-12, atol=1e-14)


def moved_by(algorithm: Algorithm, term: Tensor) -> set[str]:
    """The parameters that a term moves."""
    return {name for name, own in gradients(algorithm, term).items() if own.abs().max() > 0}


@torch.no_grad()
def numeric_gradient(value: Callable[[], Tensor], parameter: Tensor, step: float = 1e-6) -> Tensor:
    """By central differences; the parameter is changed in place and put back."""
    found = torch.zeros_like(parameter)
    flat, into = parameter.view(-1), found.view(-1)
    for place in range(flat.numel()):
        before = flat[place].item()
        flat[place] = before + step
        above = value()
        flat[place] = before - step
        below = value()
        flat[place] = before
        into[place] = (above - below) / (2 * step)
    return found


def network_after_training(algorithm: str, steps: int = 4, **settings: Any) -> dict[str, Tensor]:
    """Backbone and classifier after some steps on the embedded digits, gradients clipped."""
    values = {"dataset": "rotated-digits", "target": "0", "algorithm": algorithm, "seed": 0}
    dataset = open_dataset("rotated-digits", data_root=None, protocol=None, seed=0)
    budget = {"images_per_domain": 8, "steps": steps, "warmup": 0, "clip_norm": 0.1}
    program = Program([trainee(values, budget | settings, dataset, torch.device("cpu"))])
    for _ in range(steps):
        program.step()
    return {
        name: own for name, own in program.parameters.items() if name.startswith(("backbone.", "classifier."))
    }
