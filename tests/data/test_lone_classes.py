from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stripes import Stripes

from metavib.algorithms import ALGORITHMS
from metavib.data.episodes import Episode, EpisodeSampler, Source
from metavib.data.lone_classes import warnings_of
from metavib.data.opening import open_sources, open_target
from metavib.data.splits import split_domains
from metavib.data.store.storage import ImageStore
from metavib.data.transforms import Augmentation, Preprocessing
from metavib.models.directory import build_algorithm, preprocessing_of
from metavib.models.measuring import Evaluation, embed, measure
from metavib.training.experiment import experiment_from
from metavib.training.loop import Run, train
from metavib.training.run_directory import RunDirectory

pytestmark = pytest.mark.whole

PIXEL = Preprocessing(1, 1, (0.0,), (1.0,))


def source_of(domains: list[list[int]], labels: list[int], classes: int) -> Source:
    """Images of one pixel that says which row of the store it is."""
    pixels = np.arange(len(labels), dtype=np.uint8).reshape(-1, 1, 1, 1)
    return Source(ImageStore([pixels], torch.device("cpu")), PIXEL, domains, labels, classes)


def sampler(
    *sources: Source, images: int = 12, balanced: bool = False, lends: bool = True, domains: int = 3
) -> EpisodeSampler:
    return EpisodeSampler(
        sources,
        list(range(len(sources))),
        domains_per_episode=domains,
        images_per_domain=images,
        class_balanced=balanced,
        augmentation=Augmentation(),
        lends=lends,
    )


def rows_by_domain(episode: Episode) -> dict[int, list[int]]:
    """The rows that each domain of an episode shows, read from the pixels."""
    everyone = episode.all_domains()
    rows = (everyone.images.flatten(1) * 255).round().long()
    return {int(domain): own.tolist() for domain, own in zip(everyone.domains, rows, strict=True)}


def lone_rows(rows: list[list[int]], labels: list[int]) -> dict[int, set[int]]:
    """The training rows of each class that one domain alone has."""
    homes: dict[int, set[int]] = {}
    for domain, own in enumerate(rows):
        for row in own:
            homes.setdefault(labels[row], set()).add(domain)
    return {
        label: {row for own in rows for row in own if labels[row] == label}
        for label, domains in homes.items()
        if len(domains) == 1
    }


@st.composite
def datasets(draw: st.DrawFn) -> tuple[list[list[int]], list[int], int]:
    """Rows of each domain, labels of all rows, classes: many classes are in one domain alone."""
    classes = draw(st.integers(1, 5))
    domains: list[list[int]] = []
    labels: list[int] = []
    of_domain = st.lists(st.integers(0, classes - 1), min_size=1, max_size=9)
    for members in draw(st.lists(of_domain, min_size=2, max_size=4)):
        domains.append(list(range(len(labels), len(labels) + len(members))))
        labels.extend(members)
    return domains, labels, classes


@settings(max_examples=80, deadline=None)
@given(datasets(), st.integers(1, 12), st.booleans(), st.integers(0, 50))
def test_an_episode_is_made_of_own_images_and_of_lone_classes_each_in_one_domain(
    dataset: tuple[list[list[int]], list[int], int], images: int, balanced: bool, step: int
) -> None:
    rows, labels, classes = dataset
    episode = sampler(source_of(*dataset), images=images, balanced=balanced).draw(step)
    lone = lone_rows(rows, labels)
    everyone = episode.all_domains()
    shown = rows_by_domain(episode)
    for domain, said in zip(everyone.domains.tolist(), everyone.labels, strict=True):
        assert said.tolist() == [labels[row] for row in shown[domain]]
        assert set(shown[domain]) <= set(rows[domain]) | set().union(*lone.values())
    for members in lone.values():
        if len(members) >= len(shown):
            places = Counter(row for own in shown.values() for row in set(own) & members)
            assert all(count == 1 for count in places.values())
    if images >= classes:
        for domain, said in zip(episode.meta_train.domains.tolist(), episode.meta_train.labels, strict=True):
            assert set(said.tolist()) == {labels[row] for row in rows[domain]} | set(lone)


COMMON = ([list(range(start, start + 12)) for start in (0, 12, 24)], [0, 1, 2] * 12, 3)
LONE = ([list(range(12)), list(range(12, 24)), list(range(24, 36))], [0, 1, 2] * 4 + [0, 1] * 12, 3)


@pytest.mark.parametrize("balanced", [True, False])
def test_where_every_class_has_company_nothing_is_lent(balanced: bool) -> None:
    source = source_of(*COMMON)
    for step in range(5):
        with_lending = sampler(source, balanced=balanced).draw(step)
        without = sampler(source, balanced=balanced, lends=False).draw(step)
        for own, other in zip(with_lending, without, strict=True):
            assert all(torch.equal(mine, its) for mine, its in zip(own, other, strict=True))


def test_a_method_that_pools_its_domains_is_lent_nothing() -> None:
    rows, *_ = LONE
    for step in range(5):
        for domain, shown in rows_by_domain(sampler(source_of(*LONE), lends=False).draw(step)).items():
            assert set(shown) <= set(rows[domain])


def test_a_lent_image_is_drawn_as_often_as_one_of_ones_own() -> None:
    drawn = sampler(source_of(*LONE), images=100)
    counts = Counter(
        row
        for step in range(200)
        for row in rows_by_domain(drawn.draw(step))[1][3:]  # unasked ones
    )
    own = [counts[row] for row in range(12, 24)]
    lent = [counts[row] for row in (2, 5, 8, 11)]
    expected = 200 * 97 / 16
    assert np.mean(own) == pytest.approx(expected, rel=0.05)
    assert np.mean(lent) == pytest.approx(expected, rel=0.05)


def test_a_stacked_run_is_lent_what_it_is_lent_alone() -> None:
    sources = [source_of(*COMMON), source_of(*LONE), source_of(LONE[0], LONE[1][::-1], 3)]
    stacked = sampler(*sources)
    for step in (0, 1, 7):
        together = stacked.episode(stacked.drawn(torch.tensor(step)), torch.tensor(step))
        for run, source in enumerate(sources):
            alone = EpisodeSampler(
                [source],
                [run],
                domains_per_episode=3,
                images_per_domain=12,
                class_balanced=False,
                augmentation=Augmentation(),
                lends=True,
            ).draw(step)
            for samples, own in zip(together, alone, strict=True):
                assert all(torch.equal(values[run], mine) for values, mine in zip(samples, own, strict=True))


def test_domains_without_a_common_class_become_parts_of_one_pool() -> None:
    rows, labels = [list(range(0, 20)), list(range(20, 40))], [0] * 20 + [1] * 20
    drawn = sampler(source_of(rows, labels, 2), images=30, domains=2)
    for step in range(4):
        shown = rows_by_domain(drawn.draw(step))
        assert all(0 < sum(row < 20 for row in own) < 30 for own in shown.values())
        assert not set(shown[0]) & set(shown[1])


def test_lone_classes_are_found_by_the_training_images_of_a_split() -> None:
    split = split_domains(STRIPES, "grey", seed=1, validation_share=0.2)
    assert split.lone_classes(STRIPES) == {"lone": "dim"}
    assert split_domains(STRIPES, "dazzling", seed=1, validation_share=0.2).lone_classes(STRIPES) == {}


@pytest.mark.parametrize(
    ("owners", "begins"),
    [
        ({}, []),
        ({"emu": "farm"}, ["class 'emu' is in one source domain alone, 'farm': what is learnt of it"]),
        (
            {"emu": "farm", "yak": "zoo", "gnu": "farm"},
            ["classes 'emu', 'gnu' are in one source domain alone, 'farm'", "class 'yak' is in one source"],
        ),
        (
            {str(n): "farm" for n in range(9)},
            ["classes '0', '1', '2', '3', '4' and 4 more are in one source"],
        ),
    ],
)
def test_the_warning_names_lone_classes_by_the_domain_that_has_them(
    owners: dict[str, str], begins: list[str]
) -> None:
    lines = warnings_of(owners)
    assert len(lines) == len(begins)
    assert all(line.startswith(begin) for line, begin in zip(lines, begins, strict=True))


# --- what a method makes of it ----------------------------------------------------------------------------


# The last class is in one source domain, "dim", and in the target.
STRIPES = Stripes(("a", "b", "c", "lone"), last_in=("dim", "grey"))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_class_of_one_source_domain_is_learnt(algorithm: str, tmp_path: Path) -> None:
    values = {"dataset": "rotated-digits", "target": "grey", "seed": 1, "algorithm": algorithm}
    values |= {"preset": "demo", "backbone": "digits", "weights": "none"}
    small = {"images_per_domain": 8, "validation_share": 0.2, "steps": 50}
    if algorithm in ("baseline", "vib", "metavib"):
        small |= {"latent_width": 16, "latent_draws": 2, "classifier_draws": 2}
    experiment = experiment_from(values, small)
    built = build_algorithm(algorithm, experiment.method, "digits", "none", 4, 1, domains=3)
    split = split_domains(STRIPES, "grey", seed=1, validation_share=0.2)
    preprocessing = preprocessing_of(built.backbone)
    sources = open_sources(STRIPES, split, preprocessing, torch.device("cpu"), skip_bad=False)
    run = Run(experiment, built, sources, RunDirectory(tmp_path), "the split")
    list(train([run], run.directory.checkpoints))
    unseen, _ = open_target(
        STRIPES, split, preprocessing, torch.device("cpu"), sources.digests, skip_bad=False
    )
    for rows in (sources.validation, unseen):
        measured = measure(built, embed(built, rows.batches()), 1, Evaluation(repeats=1))
        assert measured.by_class.per_class_accuracy == pytest.approx([1.0] * 4, abs=0.1)
