"""What every algorithm promises, once for all of them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, final

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap
from torch.utils._pytree import tree_map

from metavib.algorithms import ALGORITHMS, create
from metavib.algorithms.base import Algorithm
from metavib.core.settings import names_of
from metavib.data.episodes import Episode, Samples
from metavib.data.store.storage import Batch
from metavib.nn.backbone import PIXELS, Backbone, drop
from metavib.nn.backbones import DigitNetwork

CLASSES, DOMAINS = 3, 3
TRAIN, TEST = torch.tensor([[0, 1, 2, 0], [2, 2, 1, 0]]), torch.tensor([[0, 1, 2, 2]])
SMALL = {"latent_width": 8, "latent_draws": 2, "classifier_draws": 3}
SMALL |= {"code_width": 8, "auxiliary_width": 8, "decoder_width": 8}
SMALL |= {"phase_one": 0.0, "warm_up": 0.0}  # all terms from the first step on
BESIDE_THE_BACKBONE = {"reconstruction", "difference"}  # terms in which an image may be seen by other ways


@final
class Dropping(Backbone):
    """A backbone with dropout, as AlexNet has it, of a few units."""

    feature_size = 5
    image_size = 28
    channels = 1
    normalisation = PIXELS
    dropout_units = (7, 6)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(784, 7), nn.Linear(7, 6), nn.Linear(6, 5)

    def extract(self, images: Tensor, masks: tuple[Tensor | None, ...]) -> Tensor:
        units = drop(self.first(images.flatten(1)).tanh(), masks[0])
        return self.third(drop(self.second(units).tanh(), masks[1]))


def built(name: str, *, seed: int = 0, backbone: type[Backbone] = DigitNetwork, **values: Any) -> Algorithm:
    kind = ALGORITHMS[name]
    known: Any = {key: value for key, value in (SMALL | values).items() if key in names_of(kind.Config)}
    torch.manual_seed(seed)
    return create(name, backbone(), CLASSES, DOMAINS, kind.Config(**known)).double()


def episode_of(train: Tensor = TRAIN, test: Tensor = TEST, *, seed: int = 0) -> Episode:
    generator = torch.Generator().manual_seed(seed)

    def samples(labels: Tensor, first: int) -> Samples:
        images = torch.rand(*labels.shape, 1, 28, 28, dtype=torch.float64, generator=generator)
        return Samples(images, labels, torch.arange(first, first + len(labels)))

    return Episode(samples(train, 1), samples(test, 0))


def noise_for(algorithm: Algorithm, episode: Episode, *, seed: int = 0) -> dict[str, Tensor]:
    counts = episode.meta_train.labels.numel(), episode.meta_test.labels.numel()
    return draw(algorithm.noise_shapes(*counts), seed)


def draw(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, dtype=torch.float64, generator=generator) for name, shape in shapes.items()
    }


def total(terms: Mapping[str, Tensor]) -> Tensor:
    return torch.stack(list(terms.values())).sum()


def tensors_of(*values: Any) -> list[Tensor]:
    return [leaf.clone() for leaf in torch.utils._pytree.tree_leaves(values)]


@pytest.fixture(params=ALGORITHMS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def algorithm(name: str) -> Algorithm:
    return built(name)


def test_losses_are_named_finite_scalars_and_forward_gives_the_same(algorithm: Algorithm) -> None:
    episode = episode_of()
    noise = noise_for(algorithm, episode)
    terms = algorithm.losses(episode, noise)
    assert terms
    assert all(term_name.isidentifier() for term_name in terms)
    assert all(term.shape == () and term.isfinite() for term in terms.values())
    assert algorithm(episode, noise) == terms


def test_losses_are_pure(algorithm: Algorithm) -> None:
    episode = episode_of()
    noise = noise_for(algorithm, episode)
    before = tensors_of(algorithm.state_dict(), dict(algorithm.named_buffers()), episode, noise)
    random_state = torch.get_rng_state()
    terms = algorithm.losses(episode, noise)
    total(terms).backward()
    assert algorithm.losses(episode, noise) == terms
    after = tensors_of(algorithm.state_dict(), dict(algorithm.named_buffers()), episode, noise)
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert torch.equal(random_state, torch.get_rng_state())


def test_every_parameter_gets_a_gradient(algorithm: Algorithm) -> None:
    episode = episode_of()
    total(algorithm.losses(episode, noise_for(algorithm, episode))).backward()
    for parameter_name, parameter in algorithm.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.abs().max() > 0, parameter_name


def stackable_settings(name: str, value: float) -> dict[str, Any]:
    """The settings in which stacked runs may differ, at this value; ten times as much where they are counts."""
    counts = {field.name for field in fields(ALGORITHMS[name].Config) if isinstance(field.default, int)}
    return {one: round(10 * value) if one in counts else value for one in ALGORITHMS[name].STACKABLE}


def test_runs_stacked_by_vmap_equal_runs_one_by_one(name: str) -> None:
    def model(seed: int, value: float) -> Algorithm:
        return built(name, seed=seed, **stackable_settings(name, value))

    models = [model(seed, value) for seed, value in enumerate((0.5, 0.1, 0.9))]
    episodes = [episode_of(seed=seed) for seed in range(3)]
    noises = [noise_for(models[0], episodes[0], seed=seed) for seed in range(3)]

    def objective(parameters: Any, buffers: Any, episode: Episode, noise: Any) -> tuple[Tensor, Any]:
        terms = functional_call(models[0], (parameters, buffers), (episode, noise))
        return total(terms), terms

    def stacked(values: list[Any]) -> Any:
        return tree_map(lambda *leaves: torch.stack(leaves), *values)

    gradients, (_, terms) = vmap(grad_and_value(objective, has_aux=True))(
        *stack_module_state(models), stacked(episodes), stacked(noises)
    )
    for run, model in enumerate(models):
        own = model.losses(episodes[run], noises[run])
        assert own.keys() == terms.keys()
        for key, value in own.items():
            torch.testing.assert_close(terms[key][run], value, rtol=1e-8, atol=1e-8)
        model.zero_grad()
        total(own).backward()
        for key, parameter in model.named_parameters():
            torch.testing.assert_close(gradients[key][run], parameter.grad, rtol=1e-8, atol=1e-8)


def test_settings_that_may_differ_between_stacked_runs_are_buffers_and_not_saved(name: str) -> None:
    given = stackable_settings(name, 0.5)
    algorithm = built(name, **given)
    for setting in ALGORITHMS[name].STACKABLE:
        assert dict(algorithm.named_buffers())[setting] == given[setting]
        assert setting not in algorithm.state_dict()
    settings = set(names_of(ALGORITHMS[name].Config))
    assert {"beta"} & settings <= set(ALGORITHMS[name].STACKABLE) <= settings


class Recorder(Mapping[str, Tensor]):
    """Noise that remembers which of it was taken."""

    def __init__(self, noise: Mapping[str, Tensor]) -> None:
        self.noise, self.taken = noise, set[str]()

    def __getitem__(self, key: str) -> Tensor:
        value = self.noise[key]
        self.taken.add(key)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self.noise)

    def __len__(self) -> int:
        return len(self.noise)


@pytest.mark.parametrize("backbone", [DigitNetwork, Dropping])
def test_noise_shapes_are_what_losses_take(name: str, backbone: type[Backbone]) -> None:
    algorithm, episode = built(name, backbone=backbone), episode_of()
    noise = Recorder(noise_for(algorithm, episode))
    algorithm.losses(episode, noise)
    assert noise.taken == set(algorithm.noise_shapes(8, 4))
    for purpose, values in noise.noise.items():
        longer = torch.cat([values, values[..., :1]], dim=-1)
        with pytest.raises((RuntimeError, TypeError)):
            algorithm.losses(episode, {**noise.noise, purpose: longer})


def test_dropout_takes_its_noise_from_the_noise_and_prediction_drops_nothing(name: str) -> None:
    algorithm, episode = built(name, backbone=Dropping), episode_of()
    assert algorithm.noise_shapes(8, 4)["dropout"] == (12, 7 + 6)
    noise = noise_for(algorithm, episode)
    losses = total(algorithm.losses(episode, noise))
    assert losses != total(algorithm.losses(episode, noise | {"dropout": -noise["dropout"]}))
    # Only the sign of a draw counts, and where all is dropped no image is seen any more.
    assert losses == total(algorithm.losses(episode, noise | {"dropout": noise["dropout"].sign()}))
    dropped = noise | {"dropout": torch.full((12, 13), -1.0, dtype=torch.float64)}
    own, other = (algorithm.losses(given, dropped) for given in (episode, episode_of(seed=1)))
    through_it = own.keys() - BESIDE_THE_BACKBONE
    assert {key: own[key] for key in through_it} == {key: other[key] for key in through_it}
    assert "dropout" not in algorithm.prediction_noise_shapes(4)


def test_a_class_that_meta_train_lacks_leaves_losses_and_gradients_finite(algorithm: Algorithm) -> None:
    episode = episode_of(train=torch.tensor([[0, 1, 1, 0], [1, 0, 1, 0]]))
    terms = algorithm.losses(episode, noise_for(algorithm, episode))
    total(terms).backward()
    assert all(term.isfinite() for term in terms.values())
    assert all(parameter.grad.isfinite().all() for parameter in algorithm.parameters())


def absorbed(algorithm: Algorithm) -> Algorithm:
    source = episode_of(seed=2).meta_train
    algorithm.absorb([Batch(images, labels) for images, labels in zip(*source[:2], strict=True)])
    return algorithm


@torch.no_grad()
def test_a_prediction_has_normalised_probabilities_for_every_pair_of_draws(algorithm: Algorithm) -> None:
    images = episode_of().meta_test.flat_images()
    shapes = absorbed(algorithm).prediction_noise_shapes(len(images))
    drawn = algorithm.predictive(algorithm.embed(images), draw(shapes)).log_probabilities
    draws = (shapes["classifier"][0], shapes["latent"][0]) if shapes else (1, 1)
    assert drawn.shape == (*draws, 4, CLASSES)
    torch.testing.assert_close(drawn.exp().sum(dim=-1), torch.ones_like(drawn[..., 0]))
    assert len(drawn.exp().unique()) == drawn.numel()  # no two draws, images or classes are alike


@torch.no_grad()
def test_without_noise_a_prediction_has_one_draw(algorithm: Algorithm) -> None:
    images = episode_of().meta_test.flat_images()
    embedded = absorbed(algorithm).embed(images)
    at_mean = algorithm.predictive(embedded, None).log_probabilities
    assert at_mean.shape == (1, 1, 4, CLASSES)
    without_spread = {key: 0 * value for key, value in draw(algorithm.prediction_noise_shapes(1)).items()}
    drawn = algorithm.predictive(embedded, without_spread).log_probabilities
    torch.testing.assert_close(drawn, at_mean.expand_as(drawn))


@torch.no_grad()
def test_draws_and_mean_together_are_those_alone(algorithm: Algorithm) -> None:
    embedded = absorbed(algorithm).embed(episode_of().meta_test.flat_images())
    noise = draw(algorithm.prediction_noise_shapes(1))
    by_classifier, at_mean = algorithm.drawn_and_mean(embedded, noise)
    torch.testing.assert_close(by_classifier, algorithm.predictive(embedded, noise).by_classifier())
    torch.testing.assert_close(at_mean, algorithm.predictive(embedded, None).probabilities())


@torch.no_grad()
def test_an_image_gets_the_same_answer_alone_and_in_a_batch(algorithm: Algorithm) -> None:
    images = episode_of().meta_test.flat_images()
    noise = draw(absorbed(algorithm).prediction_noise_shapes(1))
    together = algorithm.predictive(algorithm.embed(images), noise).log_probabilities
    alone = algorithm.predictive(algorithm.embed(images[2:3]), noise).log_probabilities
    torch.testing.assert_close(together[:, :, 2:3], alone, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_begin_and_absorb_leave_the_parameters_as_they_are(algorithm: Algorithm) -> None:
    before = copy.deepcopy(dict(algorithm.named_parameters()))
    algorithm.begin(episode_of())
    absorbed(algorithm)
    assert all(torch.equal(before[key], value) for key, value in algorithm.named_parameters())


@torch.no_grad()
def test_a_state_dict_is_all_that_a_prediction_needs(name: str) -> None:
    trained = absorbed(built(name))
    trained.begin(episode_of())
    loaded, training_only = built(name, seed=1), ALGORITHMS[name].TRAINING_ONLY
    state = trained.state_dict()
    assert all(any(key.startswith(prefix) for key in state) for prefix in training_only)
    needed = {key: value for key, value in state.items() if not key.startswith(training_only)}
    loaded.load_state_dict(needed, strict=False)
    images = episode_of().meta_test.flat_images()
    noise = draw(trained.prediction_noise_shapes(1))
    answers = [model.predictive(model.embed(images), noise).log_probabilities for model in (trained, loaded)]
    assert torch.equal(*answers)
