"""What grows with classes, domains and images, and that nothing grows faster than they do.

Work is counted, not timed: numbers that operators make, products that they add up, comparisons of names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from small_episodes import Smooth
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.synthetic import Synthetic
from metavib.algorithms.base import Algorithm
from metavib.algorithms.erm import ERM
from metavib.algorithms.masf import MASF
from metavib.algorithms.metavib import MetaVIB
from metavib.data.arrays import sources_of
from metavib.data.episodes import Episode, EpisodeSampler, Samples, Source
from metavib.data.inspection import _problems_of_domains
from metavib.data.splits import split_domains
from metavib.data.store.storage import Batch, ImageStore
from metavib.data.transforms import Augmentation, Preprocessing
from metavib.models import measuring as evaluate
from metavib.models.calibration import answered, calibrate
from metavib.models.measuring import Embedded, Evaluation, measure
from metavib.nn.randomness import normal
from metavib.runs.capacity import Alive

pytestmark = pytest.mark.load

CPU = torch.device("cpu")
PIXEL = Preprocessing(1, 1, (0.0,), (1.0,))


class Made(TorchDispatchMode):
    """How many numbers operators made, in all and in the largest tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.total = self.largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        given = {id(value) for value in tree_leaves((args, kwargs))}  # what is changed in place is not made
        sizes = [v.numel() for v in tree_leaves(found) if isinstance(v, Tensor) and id(v) not in given]
        self.total += sum(sizes)
        self.largest = max([self.largest, *sizes])
        return found


def work(of: Callable[[], object]) -> int:
    """Numbers made, and products added up."""
    with FlopCounterMode(display=False) as products, Made() as made:
        of()
    return made.total + products.get_total_flops()


class Name(str):
    """Text that counts how often it is compared."""

    compared = 0
    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)


def comparisons(of: Callable[[], object]) -> int:
    Name.compared = 0
    of()
    return Name.compared


def built(kind: Any, classes: int, **settings: Any) -> Any:
    torch.manual_seed(0)
    return kind(Smooth(), classes, kind.Config(**settings))


def small(classes: int, **settings: Any) -> MetaVIB:
    return built(MetaVIB, classes, latent_width=4, latent_draws=2, classifier_draws=2, **settings)


def episode_of(domains: int, images: int, classes: int) -> Episode:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(domains, images, 1, 3, 3, generator=generator)
    labels = torch.randint(classes, (domains, images), generator=generator)
    numbers = torch.arange(domains)
    return Episode(Samples(pixels[1:], labels[1:], numbers[1:]), Samples(pixels[:1], labels[:1], numbers[:1]))


def step(algorithm: Algorithm, episode: Episode) -> None:
    """Losses and their gradients."""
    train, test = (samples.labels.numel() for samples in episode)
    noise = {name: normal(0, shape) for name, shape in algorithm.noise_shapes(train, test).items()}
    torch.stack(list(algorithm.losses(episode, noise).values())).sum().backward()


# --- a step -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("roles", ["one", "every"])
def test_a_step_of_metavib_does_not_grow_with_classes_that_no_image_of_it_has(roles: str) -> None:
    few, many = (
        work(lambda n=classes: step(small(n, roles=roles), episode_of(3, 8, n)))
        - work(lambda n=classes: small(n))
        for classes in (24, 6000)
    )
    assert many <= 1.05 * few


def test_a_step_of_masf_grows_with_classes_and_not_with_their_square() -> None:
    few, many = (work(lambda n=classes: step(built(MASF, n), episode_of(3, 8, n))) for classes in (500, 4000))
    assert many <= 10 * few


def test_a_step_in_which_every_domain_is_meta_test_grows_with_domains_and_hardly_with_their_square() -> None:
    # One product of domains x domains adds up the class sums of all others: little beside 64 images a domain.
    few, many = (
        work(lambda n=domains: step(small(5, roles="every"), episode_of(n, 64, 5))) for domains in (10, 80)
    )
    assert many <= 8.5 * few


@pytest.mark.parametrize("stored", [True, False])
def test_a_draw_looks_at_no_class_that_it_does_not_ask_for(stored: bool) -> None:
    made = {}
    for classes in (10, 5000):
        pixels = np.zeros((3 * classes, 1, 1, 1), dtype=np.uint8)
        rows = np.split(np.arange(3 * classes), 3)
        store = ImageStore([pixels], CPU, resident=stored)
        source = Source(store, PIXEL, rows, np.arange(3 * classes) % classes, classes)
        sampler = EpisodeSampler(
            [source],
            [0],
            domains_per_episode=3,
            images_per_domain=8,
            class_balanced=True,
            augmentation=Augmentation(),
        )
        with Made() as counted:
            sampler._positions(3)
        made[classes] = counted.total
    assert made[10] == made[5000]


# --- data -------------------------------------------------------------------------------------------------


def test_a_split_compares_each_image_with_no_class_but_its_own() -> None:
    dataset = Synthetic(images=600, classes=50, domains=3)
    listings = {domain: dataset.listing(domain) for domain in dataset.domains}
    for listing in listings.values():
        object.__setattr__(listing, "classes", tuple(Name(label) for label in listing.classes))
    dataset.listing = listings.__getitem__  # type: ignore[method-assign]
    # Sets and tables compare what has the same hash, so each image a few times; with all classes: 20,000.
    assert comparisons(lambda: split_domains(dataset, "a0", seed=0, validation_share=0.2)) <= 10 * 600


def test_reading_images_looks_only_at_the_domains_that_hold_some() -> None:
    parts = [np.full((4, 1, 1, 1), domain, dtype=np.uint8) for domain in range(100)]
    store = ImageStore(parts, CPU, resident=False)
    looked_at = [number for number, _ in store._by_part(np.array([399, 8, 11, 396, 8]))]
    assert looked_at == [2, 99]
    assert store.gather(torch.tensor([399, 8, 11, 396, 8])).flatten().tolist() == [99, 2, 2, 99, 2]
    assert list(store._by_part(np.array([], dtype=np.int64))) == []


class Compared(np.ndarray):
    """An array that counts how often it is compared as a whole."""

    count = 0
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Any:
        Compared.count += 1
        return np.ndarray.__eq__(self, other)


def test_arrays_are_divided_into_domains_in_one_go() -> None:
    domains = np.tile(np.arange(40), 5)
    Compared.count = 0
    pixels = np.zeros((200, 1, 1, 1), dtype=np.uint8)
    sources = sources_of(pixels, np.zeros(200, dtype=np.int64), domains.view(Compared), 1, PIXEL, CPU)
    assert Compared.count == 0
    assert sources.train.rows.view(40, 5).tolist() == [list(range(d, 200, 40)) for d in range(40)]
    uneven = sources_of(pixels[:3], np.zeros(3, dtype=np.int64), np.array([1, 0, 1]), 1, PIXEL, CPU)
    assert uneven.train.rows.tolist() == [1, 0, 2]
    assert uneven.train.counts.tolist() == [[1], [2]]


def test_missing_classes_are_found_without_comparing_all_domains_with_all() -> None:
    names = [Name(f"domain {number}") for number in range(60)]
    counts = {name: {"everywhere": 60, f"own {number // 2}": 60} for number, name in enumerate(names)}
    # 30 classes, each missing from 58 domains: comparing names would take 30 x 60 x 2 of them and more.
    assert comparisons(lambda: _problems_of_domains(counts)) <= 200
    missing = [own.text for own in _problems_of_domains(counts) if "is missing from" in own.text]
    assert len(missing) == 30
    assert all(text.count("domain ") == 60 for text in missing)  # and the two that have it


# --- after training ---------------------------------------------------------------------------------------


def test_class_means_of_all_images_grow_with_the_images_and_not_with_images_times_classes() -> None:
    def absorb(classes: int) -> None:
        labels = torch.arange(4 * classes) // 4  # class after class, as sources come
        images = torch.randn(len(labels), 1, 3, 3, generator=torch.Generator().manual_seed(0))
        small(classes).absorb(map(Batch, images.split(50), labels.split(50)))

    few, many = (work(lambda n=classes: absorb(n)) for classes in (300, 3000))
    assert many <= 12 * few


def embedded(images: int, classes: int) -> Embedded:
    generator = torch.Generator().manual_seed(0)
    return Embedded(torch.randn(images, 4, generator=generator), torch.arange(images) % classes)


@pytest.mark.parametrize("kind", [ERM, MetaVIB])
def test_measuring_never_holds_the_probabilities_of_all_images_for_all_classes(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    classes = 1100  # so that a block is larger than the 512 x 512 waves of the smooth calibration error
    algorithm, draws = (built(ERM, classes), 1) if kind is ERM else (small(classes), 4)
    images = embedded(900, classes)
    at_once = measure(algorithm, images, 0, Evaluation(repeats=2))
    monkeypatch.setattr(evaluate, "MOST_VALUES", classes * 256 * draws)  # so that chunks stay what they are
    with Made() as made:
        in_blocks = measure(algorithm, images, 0, Evaluation(repeats=2))
    assert made.largest <= classes * 256 * draws
    assert in_blocks == at_once  # to the last bit


def test_fewer_images_are_predicted_at_a_time_where_there_are_thousands_of_classes() -> None:
    assert [evaluate.chunk_of(built(MetaVIB, classes)) for classes in (7, 345, 1300, 10_000)] == [
        256,
        256,
        256,
        33,
    ]
    assert evaluate.chunk_of(built(ERM, 10_000)) == 256


def test_what_is_unsure_is_counted_without_the_draws_of_all_images_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evaluate, "CHUNK", 16)
    algorithm, most = small(5), {}
    calibration = calibrate(algorithm, embedded(64, 5))
    assert calibration is not None
    for images in (64, 640):
        own = embedded(images, 5)
        with Alive() as alive:
            answered(algorithm, own, calibration)
        most[images] = alive.most
    assert most[640] - most[64] <= 32 * (640 - 64)  # some bytes an image: which are sure, and which are right
