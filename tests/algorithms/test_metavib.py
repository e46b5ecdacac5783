from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_metavib import CLASSES, TRAIN, WITHOUT_CLASS_2, Tiny, built, episode_of, losses_of, noise_for
from torch import Tensor
from torch.distributions import Independent, Normal, kl_divergence
from torch.func import functional_call, grad, stack_module_state, vmap

from metavib.algorithms import ALGORITHMS
from metavib.algorithms import inferred as module
from metavib.algorithms.inferred import ProbabilisticClassifier
from metavib.algorithms.metavib import VIB, Baseline, MetaVIB
from metavib.core.settings import names_of
from metavib.data.episodes import Episode, Samples
from metavib.data.store.storage import Batch
from metavib.models.directory import build_algorithm
from metavib.nn.functional.gaussian import Gaussian
from metavib.nn.randomness import bits, key_of, normal
from metavib.training.optimizer import Optimizer, Training


def assert_equal_losses(terms: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert terms.keys() == expected.keys()
    for name, value in terms.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-10, atol=1e-10)


def as_distribution(own: Gaussian) -> Independent:
    return Independent(Normal(own.mean, (0.5 * own.log_variance).exp()), 1)


def class_mean(algorithm: ProbabilisticClassifier, samples: Samples, label: int) -> Tensor | None:
    images = [x for x, y in zip(samples.flat_images(), samples.flat_labels(), strict=True) if y == label]
    return torch.stack([algorithm.features(x[None])[0] for x in images]).mean(dim=0) if images else None


def objective_by_the_book(
    algorithm: Any, episode: Episode, noise: dict[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """The formula of the module's docstring, literally: a loop over samples, draws and classes."""
    h = {c: class_mean(algorithm, episode.meta_train, c) for c in range(CLASSES)}
    present = [c for c in h if h[c] is not None]
    likelihoods, divergences = [], []
    for n, y in enumerate(episode.meta_test.flat_labels().tolist()):
        if y not in present:
            continue
        latent = algorithm.infer_latent(algorithm.features(episode.meta_test.flat_images()[n : n + 1])[0])
        log_likelihood = []
        for psi_noise in noise["classifier"]:
            for z_noise in noise["latent"]:
                z = latent.mean + (0.5 * latent.log_variance).exp() * z_noise[n]
                scores = {}
                for c in present:
                    classifier = algorithm.infer_classifier(h[c])
                    psi = classifier.mean + (0.5 * classifier.log_variance).exp() * psi_noise[c]
                    scores[c] = (psi * z).sum().exp()
                log_likelihood.append((scores[y] / sum(scores.values())).log())
        likelihoods.append(torch.stack(log_likelihood).mean())
        posterior = as_distribution(latent)
        if isinstance(algorithm, MetaVIB):
            prior = as_distribution(algorithm.infer_latent(h[y]))
            divergences.append(
                kl_divergence(prior, posterior) if algorithm.reversed else kl_divergence(posterior, prior)
            )
        elif isinstance(algorithm, VIB):
            standard = Independent(Normal(torch.zeros(4).double(), 1.0), 1)
            divergences.append(kl_divergence(posterior, standard))
    bottleneck = algorithm.config.beta * torch.stack(divergences).mean() if divergences else torch.zeros(())
    return -torch.stack(likelihoods).mean(), bottleneck


@pytest.mark.parametrize("train", [TRAIN, WITHOUT_CLASS_2])
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (Baseline, {}),
        (VIB, {"beta": 0.5}),
        (MetaVIB, {"beta": 0.5}),
        (MetaVIB, {"beta": 0.25, "kl_direction": "prior-to-posterior"}),
    ],
)
def test_the_objective_equals_a_literal_loop_over_samples_draws_and_classes(
    kind: Any, values: dict[str, Any], train: Tensor
) -> None:
    algorithm, episode = built(kind, **values), episode_of(train)
    algorithm.begin(episode)
    noise = noise_for(algorithm, episode)
    classification, bottleneck = objective_by_the_book(algorithm, episode, noise)
    terms = algorithm.losses(episode, noise)
    assert list(terms) == (["classification"] if kind is Baseline else ["classification", "bottleneck"])
    torch.testing.assert_close(terms["classification"], classification, rtol=1e-10, atol=1e-10)
    if kind is not Baseline:
        torch.testing.assert_close(terms["bottleneck"], bottleneck, rtol=1e-10, atol=1e-10)
        assert bottleneck > 0.01


def test_the_two_directions_of_the_divergence_differ() -> None:
    forward, reverse = (
        losses_of(built(kl_direction=direction, beta=1.0), episode_of())["bottleneck"]
        for direction in ("posterior-to-prior", "prior-to-posterior")
    )
    assert abs(forward - reverse) > 0.01


@pytest.mark.parametrize("kind", [VIB, MetaVIB])
def test_with_beta_zero_it_is_the_baseline(kind: Any) -> None:
    without, baseline, episode = built(kind, beta=0.0), built(Baseline), episode_of()
    baseline.load_state_dict(without.state_dict())
    terms, expected = losses_of(without, episode), losses_of(baseline, episode)
    assert terms["classification"] == expected["classification"]
    assert terms["bottleneck"] == 0


def test_the_bottleneck_grows_in_proportion_to_beta() -> None:
    small, large = (losses_of(built(beta=beta), episode_of())["bottleneck"] for beta in (0.5, 1.5))
    torch.testing.assert_close(3 * small, large)


@pytest.mark.parametrize("direction", ["posterior-to-prior", "prior-to-posterior"])
def test_a_prior_equal_to_the_posterior_costs_nothing(direction: str) -> None:
    one_of_each = torch.tensor([[2, 0, 1]])
    train = episode_of(one_of_each, one_of_each).meta_train
    algorithm = built(beta=1.0, kl_direction=direction)
    same = losses_of(algorithm, Episode(train, train))
    assert same["bottleneck"].item() == pytest.approx(0, abs=1e-12)
    moved = train._replace(images=train.images + 0.5)
    assert losses_of(algorithm, Episode(train, moved))["bottleneck"] > 0.01


@torch.no_grad()
def test_predictions_from_draws_go_to_the_one_at_the_mean_as_the_variance_goes_to_zero() -> None:
    distances = []
    for log_variance in (-2.0, -6.0, -10.0):
        algorithm = built(initial_log_variance=log_variance)
        for network in (algorithm.infer_classifier, algorithm.infer_latent):
            network.output.weight[4:].zero_()  # so that the variance is the same everywhere
        episode = episode_of()
        algorithm.absorb([Batch(episode.meta_train.flat_images(), episode.meta_train.flat_labels())])
        embedded = algorithm.embed(episode.meta_test.flat_images())
        generator = torch.Generator().manual_seed(0)
        shapes = algorithm.prediction_noise_shapes(5).items()
        noise = {purpose: torch.randn(s, dtype=torch.float64, generator=generator) for purpose, s in shapes}
        drawn, at_mean = algorithm.predictive(embedded, noise), algorithm.predictive(embedded, None)
        distances.append((drawn.probabilities() - at_mean.probabilities()).abs().max().item())
    assert distances[0] > 5 * distances[1] > 25 * distances[2]
    assert distances[2] < 0.01


def test_the_order_of_the_meta_train_samples_makes_no_difference() -> None:
    algorithm, episode = built(beta=1.0), episode_of()
    order = torch.tensor([3, 0, 2, 4, 1])
    train = episode.meta_train
    shuffled = train._replace(images=train.images[:, order], labels=train.labels[:, order])
    expected, terms = (
        losses_of(algorithm, episode),
        losses_of(algorithm, Episode(shuffled, episode.meta_test)),
    )
    assert_equal_losses(terms, expected)


def changed_in_class(samples: Samples, label: int) -> Samples:
    own = (samples.labels == label).view(*samples.labels.shape, 1, 1, 1)
    return samples._replace(images=torch.where(own, samples.images + 1.0, samples.images))


def test_the_logits_of_a_class_depend_on_its_own_meta_train_samples_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logits = []

    def recorded(*arguments: Any) -> Tensor:
        logits.append(class_logits(*arguments))
        return logits[-1]

    class_logits = module.class_logits
    monkeypatch.setattr(module, "class_logits", recorded)
    algorithm, episode = built(), episode_of()
    losses_of(algorithm, episode)
    losses_of(algorithm, episode._replace(meta_train=changed_in_class(episode.meta_train, 1)))
    difference = (logits[0] - logits[1]).abs().amax(dim=(0, 1, 2))
    assert difference[[0, 2]].max() < 1e-12
    assert difference[1] > 0.01


@pytest.mark.parametrize("kind", [Baseline, VIB, MetaVIB])
def test_meta_test_samples_of_a_class_that_meta_train_lacks_count_for_nothing(kind: Any) -> None:
    algorithm, episode = built(kind), episode_of(WITHOUT_CLASS_2)
    noise, test = noise_for(algorithm, episode), episode.meta_test
    answerable = test.labels[0] != 2
    left = test._replace(images=test.images[:, answerable], labels=test.labels[:, answerable])
    noise_left = noise | {"latent": noise["latent"][:, answerable]}
    expected = algorithm.losses(episode._replace(meta_test=left), noise_left)
    assert_equal_losses(algorithm.losses(episode, noise), expected)


@pytest.mark.parametrize("kind", [Baseline, VIB, MetaVIB])
def test_an_episode_in_which_nothing_can_be_answered_has_a_loss_of_zero(kind: Any) -> None:
    algorithm = built(kind)
    terms = losses_of(algorithm, episode_of(WITHOUT_CLASS_2, torch.tensor([[2, 2]])))
    assert all(term.item() == 0 for term in terms.values())
    sum(terms.values()).backward()
    assert all(p.grad is None or not p.grad.any() for p in algorithm.parameters())  # and none is NaN


@pytest.mark.parametrize("train", [TRAIN, WITHOUT_CLASS_2])
@pytest.mark.parametrize("kind", [VIB, MetaVIB])
def test_gradients_are_those_of_finite_differences(kind: Any, train: Tensor) -> None:
    algorithm, episode = built(kind, beta=0.5, latent_width=2), episode_of(train)
    noise = noise_for(algorithm, episode)
    names = [name for name, _ in algorithm.named_parameters()]

    def objective(*parameters: Tensor) -> Tensor:
        terms = functional_call(algorithm, dict(zip(names, parameters, strict=True)), (episode, noise))
        return sum(terms.values(), torch.zeros(()))

    assert torch.autograd.gradcheck(objective, tuple(algorithm.parameters()))


def test_absorb_keeps_the_class_means_of_all_batches_however_they_are_cut() -> None:
    algorithm, samples = built(), episode_of().meta_train
    algorithm.begin(episode_of())
    images, labels = samples.flat_images(), samples.flat_labels()
    for size in (10, 3, 1):
        algorithm.absorb([Batch(*pair) for pair in zip(images.split(size), labels.split(size), strict=True)])
        for label in range(CLASSES):
            expected = class_mean(algorithm, samples, label)
            torch.testing.assert_close(algorithm.class_features[label], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [1.0, 0.25])
def test_begin_makes_features_of_the_chosen_size_whatever_the_backbone_gives(size: float) -> None:
    algorithm, episode = built(feature_size=size), episode_of()
    algorithm.begin(episode)
    found = algorithm.features(episode.meta_train.flat_images()).square().mean().sqrt().item()
    assert found == pytest.approx(size)
    expected = losses_of(algorithm, episode)
    extract = Tiny.extract
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tiny, "extract", lambda *arguments: 20 * extract(*arguments))
        algorithm.begin(episode)
        assert_equal_losses(losses_of(algorithm, episode), expected)


def test_features_of_size_zero_are_taken_as_they_are() -> None:
    algorithm, episode = built(feature_size=0.0), episode_of()
    algorithm.begin(episode)
    images = episode.meta_train.flat_images()
    assert torch.equal(algorithm.features(images), algorithm.backbone(images))


def test_begin_survives_a_backbone_that_gives_nothing() -> None:
    algorithm, episode = built(), episode_of()
    with torch.no_grad():
        for parameter in algorithm.backbone.parameters():
            parameter.zero_()
    algorithm.begin(episode)
    assert all(term.isfinite() for term in losses_of(algorithm, episode).values())


# The losses of three training steps from a fixed seed. Where a change of the code changes them,
# CHANGELOG must say why.
GOLDEN: dict[str, dict[str, list[float]]] = {
    "erm": {"classification": [1.272215, 1.230122, 1.112964]},
    "baseline": {"classification": [1.408309, 1.216942, 1.104069]},
    "vib": {"classification": [1.408309, 1.198843, 1.094058], "bottleneck": [0.199867, 0.188563, 0.185096]},
    "metavib": {
        "classification": [1.408309, 1.227590, 1.093377],
        "bottleneck": [0.163426, 0.126503, 0.112464],
    },
    "mldg": {"classification": [1.158714, 0.952574, 0.840624], "meta_test": [1.390319, 1.329341, 1.130158]},
    "feature_critic": {
        "classification": [1.158714, 1.052323, 0.930197],
        "auxiliary": [0.267127, 0.178389, 0.126451],
        "meta_test": [0.015236, 0.014818, 0.009234],
    },
    "masf": {
        "classification": [1.158714, 1.087425, 0.938133],
        "global_alignment": [0.012198, 0.010316, 0.010352],
        "local_metric": [0.042026, 0.037558, 0.032699],
        "metric_network": [8.405209, 7.511593, 6.539720],
    },
    "metareg": {
        "classification": [1.272215, 1.230122, 1.104023],
        "regulariser": [0.0, 0.000008, 0.000013],
        "tasks": [1.763144, 1.718334, 1.692249],
        "meta_test": [2.195628, 2.215014, 2.229794],
    },
    "reptile": {
        "classification": [2.534935, 3.226615, 3.324399],
        "movement": [193.511444, 88.213554, 93.951675],
    },
    "epi_fcr": {
        "classification": [1.272215, 1.112300, 1.080632],
        "partners": [1.763144, 1.163638, 0.927753],
        "episodic_features": [3.629647, 2.565310, 2.128328],
        "episodic_classifier": [0.063611, 0.062939, 0.063100],
        "random_classifier": [0.150237, 0.143885, 0.138871],
    },
    "crossgrad": {
        "classification": [0.636108, 0.615104, 0.526609],
        "perturbed_classification": [0.629898, 0.614748, 0.524741],
        "domains": [1.711156, 1.216904, 0.988699],
        "perturbed_domains": [1.699349, 1.216786, 0.985994],
    },
    "d_sam": {"classification": [2.866456, 2.062758, 1.590965]},
    "low_rank": {"classification": [1.271146, 1.216001, 1.089564]},
    "mmd_aae": {
        "classification": [1.992862, 1.293768, 1.126922],
        "reconstruction": [0.102371, 0.101156, 0.100305],
        "discrepancy": [0.080563, 0.080167, 0.080011],
        "prior": [0.006691, 0.008097, 0.009229],
        "discriminator": [0.690630, 0.645264, 0.600705],
    },
    "dsn": {
        "classification": [1.272215, 1.230084, 1.102108],
        "reconstruction": [0.296119, 0.287166, 0.280515],
        "difference": [0.158364, 0.150331, 0.145164],
        "similarity": [-0.070781, -0.065220, -0.062565],
        "domains": [1.415617, 1.304400, 1.251307],
    },
    "mtae": {
        "classification": [1.272215, 1.230128, 1.112975],
        "reconstruction": [1.135219, 1.123059, 1.114230],
    },
    "jigen": {"classification": [1.270285, 1.133560, 1.138530], "jigsaw": [3.418828, 1.621254, 2.456163]},
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_golden_losses_of_three_training_steps(name: str) -> None:
    config = ALGORITHMS[name].Config
    small = {"latent_width": 16, "latent_draws": 2, "classifier_draws": 2, "initial_log_variance": -3.0}
    small |= {"phase_one": 0.0, "warm_up": 0.0}  # all terms from the first step on
    method = config(**{key: value for key, value in small.items() if key in names_of(config)})
    algorithm = build_algorithm(name, method, "digits", "none", CLASSES, seed=0, domains=3)
    # From the library's own generator, which is the same in every version of torch.
    labels = (bits(key_of(0, "labels"), (3, 8)) % CLASSES).abs()
    patterns = normal(key_of(0, "patterns"), (CLASSES, 1, 28, 28))
    images = normal(key_of(0, "images"), (3, 8, 1, 28, 28)) + patterns[labels]
    episode = Episode(
        Samples(images[1:], labels[1:], torch.tensor([1, 2])),
        Samples(images[:1], labels[:1], torch.tensor([0])),
    )
    algorithm.begin(episode)
    parameters = dict(algorithm.named_parameters())
    stacked = {key: parameter.detach().unsqueeze(0) for key, parameter in parameters.items()}
    optimizer = Optimizer(stacked, [], [Training(steps=3, learning_rate=1e-4)])
    losses: dict[str, list[float]] = {}
    for step in range(3):
        shapes = algorithm.noise_shapes(16, 8).items()
        noise = {purpose: normal(key_of(0, purpose, step), shape) for purpose, shape in shapes}
        terms = algorithm(episode, noise)
        values = torch.stack(list(terms.values()))
        gradients = torch.autograd.grad(values.sum(), list(parameters.values()))
        optimizer.step(
            torch.tensor(step),
            values.detach().unsqueeze(0),
            {key: gradient.unsqueeze(0) for key, gradient in zip(parameters, gradients, strict=True)},
        )
        for term, value in terms.items():
            losses.setdefault(term, []).append(value.item())
    assert losses == {
        term: pytest.approx(values, rel=1e-4, abs=1e-4) for term, values in GOLDEN[name].items()
    }


@pytest.mark.parametrize("kind", [Baseline, VIB, MetaVIB])
@pytest.mark.parametrize("train", [TRAIN, WITHOUT_CLASS_2])
def test_every_role_is_the_mean_over_each_domain_as_meta_test(kind: Any, train: Tensor) -> None:
    every, one = built(kind, roles="every"), built(kind)
    episode = episode_of(train)
    noise = noise_for(every, episode)
    domains = [
        Samples(*(values[place : place + 1] for values in samples))
        for samples in episode
        for place in range(len(samples.labels))
    ]
    alone = []
    for role, test in enumerate(domains):
        others = [domain for place, domain in enumerate(domains) if place != role]
        rest = Samples(*(torch.cat(values) for values in zip(*others, strict=True)))
        alone.append(
            one.losses(Episode(rest, test), {purpose: draws[role] for purpose, draws in noise.items()})
        )
    for name, value in every.losses(episode, noise).items():
        expected = torch.stack([terms[name] for terms in alone]).mean()
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-12)


def test_every_role_can_be_stacked() -> None:
    models = [built(roles="every", beta=beta) for beta in (0.1, 1.0)]
    episode = episode_of()
    noise = noise_for(models[0], episode)

    def total(parameters: Any, buffers: Any) -> Tensor:
        terms = functional_call(models[0], (parameters, buffers), (episode, noise))
        return torch.stack(list(terms.values())).sum()

    gradients = vmap(grad(total))(*stack_module_state(models))
    for run, model in enumerate(models):
        torch.stack(list(model.losses(episode, noise).values())).sum().backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(gradients[name][run], parameter.grad, rtol=1e-8, atol=1e-10)


MANY = 1000
NAMES = torch.tensor([17, 400, 999])  # what the three classes are among a thousand


@pytest.mark.parametrize("roles", ["one", "every"])
@pytest.mark.parametrize("kind", [Baseline, VIB, MetaVIB])
@pytest.mark.parametrize("train", [TRAIN, WITHOUT_CLASS_2])
def test_classes_that_no_image_of_an_episode_has_make_no_difference(
    kind: Any, train: Tensor, roles: str
) -> None:
    few, episode = built(kind, roles=roles), episode_of(train)
    many = built(kind, MANY, roles=roles)
    weights = {name: own for name, own in few.state_dict().items() if not name.startswith("class")}
    many.load_state_dict(weights, strict=False)
    noise = noise_for(few, episode)
    renamed = Episode(*(samples._replace(labels=NAMES[samples.labels]) for samples in episode))
    # Classes have the places of their first images in order, among as many as there are images.
    ordered = torch.cat([renamed.meta_train.flat_labels(), renamed.meta_test.flat_labels()]).sort().values
    places = torch.searchsorted(ordered, NAMES)
    shape = list(noise["classifier"].shape)
    assert many.noise_shapes(10, 5)["classifier"] == (*shape[:-2], 15, shape[-1])
    classifier = torch.full((*shape[:-2], 15, shape[-1]), 9.0, dtype=torch.float64)
    classifier[..., places, :] = noise["classifier"]
    assert_equal_losses(many.losses(renamed, noise | {"classifier": classifier}), few.losses(episode, noise))


@pytest.mark.parametrize("roles", ["one", "every"])
def test_runs_with_more_classes_than_images_can_be_stacked(roles: str) -> None:
    models = [built(classes=MANY, beta=beta, roles=roles) for beta in (0.1, 1.0)]
    generator = torch.Generator().manual_seed(3)
    episodes = [
        Episode(
            *(
                s._replace(labels=torch.randint(MANY, s.labels.shape, generator=generator))
                for s in episode_of()
            )
        )
        for _ in models
    ]
    for episode in episodes:
        episode.meta_test.labels[0, :3] = episode.meta_train.labels[0, :3]
    noise = noise_for(models[0], episodes[0])
    stacked = Episode(
        *(
            Samples(*(torch.stack(values) for values in zip(*both, strict=True)))
            for both in zip(*episodes, strict=True)
        )
    )

    def terms(parameters: Any, buffers: Any, episode: Episode) -> Any:
        return functional_call(models[0], (parameters, buffers), (episode, noise))

    found = vmap(terms)(*stack_module_state(models), stacked)
    for run, (model, episode) in enumerate(zip(models, episodes, strict=True)):
        alone = model.losses(episode, noise)
        assert alone["classification"] > 0
        assert_equal_losses({name: values[run] for name, values in found.items()}, alone)


def test_class_means_of_many_classes_are_those_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = built()
    images = torch.randn(12, 1, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    labels = torch.arange(12) % CLASSES
    algorithm.absorb([Batch(images, labels)])
    whole = algorithm.class_features.clone()
    monkeypatch.setattr(module, "FEW_CLASSES", 2)
    for size in (1, 2, 5, 12):
        algorithm.absorb(map(Batch, images.split(size), labels.split(size)))
        torch.testing.assert_close(algorithm.class_features, whole, rtol=1e-13, atol=1e-15)
