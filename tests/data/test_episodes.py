from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from metavib.data.episodes import Episode, EpisodeSampler, Samples, Source
from metavib.data.store import storage
from metavib.data.store.storage import ImageStore
from metavib.data.transforms import Augmentation, Preprocessing

PIXEL = Preprocessing(1, 1, (0.0,), (1.0,))


def source_of(domains: list[list[int]], labels: list[int], classes: int) -> Source:
    """Images of one pixel that says which row of the store it is."""
    pixels = np.arange(len(labels), dtype=np.uint8).reshape(-1, 1, 1, 1)
    return Source(ImageStore([pixels], torch.device("cpu")), PIXEL, domains, labels, classes)


def sampler(
    source: Source,
    *,
    images: int = 6,
    domains: int = 3,
    balanced: bool = False,
    seed: int = 0,
    augmentation: Augmentation | None = None,
    paired: bool = False,
) -> EpisodeSampler:
    return EpisodeSampler(
        [source],
        [seed],
        domains_per_episode=domains,
        images_per_domain=images,
        class_balanced=balanced,
        augmentation=augmentation or Augmentation(),
        paired=paired,
    )


def rows_of(samples: Samples) -> Tensor:
    """[domains, samples], read from the pixels."""
    return (samples.images.flatten(1) * 255).round().long()


@st.composite
def datasets(draw: st.DrawFn) -> tuple[list[list[int]], list[int], int]:
    """Rows of each domain, labels of all rows, classes: domains lack classes, and rows are held out."""
    classes = draw(st.integers(1, 4))
    rows = st.lists(st.tuples(st.integers(0, classes - 1), st.booleans()), max_size=7)
    domains, labels = [], []
    for members in draw(st.lists(rows, min_size=2, max_size=5)):
        trained = [*members, (draw(st.integers(0, classes - 1)), True)]  # none without a training image
        domains.append([len(labels) + place for place, (_, used) in enumerate(trained) if used])
        labels.extend(label for label, _ in trained)
    return domains, labels, classes


@settings(max_examples=80, deadline=None)
@given(datasets(), st.integers(1, 9), st.integers(2, 6), st.booleans(), st.integers(0, 1000))
def test_an_episode_is_made_of_training_rows_of_different_domains(
    dataset: tuple[list[list[int]], list[int], int], images: int, domains: int, balanced: bool, step: int
) -> None:
    rows, labels, classes = dataset
    episode = sampler(source_of(*dataset), images=images, domains=domains, balanced=balanced).draw(step)
    chosen = [*episode.meta_test.domains.tolist(), *episode.meta_train.domains.tolist()]
    assert len(episode.meta_test.domains) == 1
    assert len(chosen) == len(set(chosen)) == min(domains, len(rows))
    for samples in episode:
        assert samples.images.shape == (len(samples.domains), images, 1, 1, 1)
        for domain, drawn, said in zip(samples.domains, rows_of(samples), samples.labels, strict=True):
            assert set(drawn.tolist()) <= set(rows[domain])
            assert said.tolist() == [labels[row] for row in drawn]
    if images >= classes:
        for domain, said in zip(episode.meta_train.domains, episode.meta_train.labels, strict=True):
            assert set(said.tolist()) == {labels[row] for row in rows[domain]}


REGULAR = ([list(range(start, start + 12)) for start in (0, 12, 24, 36)], [0, 1, 2] * 16, 3)


def test_flat_samples_go_through_the_domains_one_after_the_other() -> None:
    samples = sampler(source_of(*REGULAR)).draw(0).meta_train
    assert torch.equal(samples.flat_images(), torch.cat(list(samples.images)))
    assert torch.equal(samples.flat_labels(), torch.cat(list(samples.labels)))


def test_all_domains_are_those_of_both_roles_with_meta_test_last() -> None:
    episode = sampler(source_of([[0, 1], [2, 3], [4, 5]], [0, 1] * 3, 2), images=4).draw(7)
    joined = episode.all_domains()
    for both, train, test in zip(joined, *episode, strict=True):
        assert torch.equal(both[:-1], train)
        assert torch.equal(both[-1:], test)
    assert sorted(joined.domains.tolist()) == [0, 1, 2]


def test_meta_train_covers_every_class_that_its_domains_have_however_rare() -> None:
    rows = [list(range(start, start + 40)) for start in (0, 40, 80)]
    labels = [0] * 38 + [1, 2] + [0] * 39 + [2] + [1] * 39 + [3]  # no domain has all
    drawn = sampler(source_of(rows, labels, 4), images=4)
    for step in range(30):
        samples = drawn.draw(step).meta_train
        for domain, said in zip(samples.domains.tolist(), samples.labels, strict=True):
            assert set(said.tolist()) == [{0, 1, 2}, {0, 2}, {1, 3}][domain]


def test_balanced_domains_have_as_many_images_of_each_class() -> None:
    unequal = [0] * 9 + [1] * 2 + [2]
    source = source_of(REGULAR[0], unequal * 4, 3)
    for step in range(5):
        for samples in sampler(source, images=9, balanced=True).draw(step):
            assert [torch.bincount(labels).tolist() for labels in samples.labels] == [[3, 3, 3]] * len(
                samples.labels
            )


def test_otherwise_classes_are_as_frequent_as_they_are() -> None:
    unequal = [0] * 9 + [1] * 2 + [2]
    drawn = sampler(source_of(REGULAR[0], unequal * 4, 3), images=200)
    counts = torch.bincount(torch.cat([drawn.draw(step).meta_test.flat_labels() for step in range(10)]))
    assert stats.chisquare(counts.tolist(), [1500, 2000 / 6, 2000 / 12]).pvalue > 0.01


def test_paired_domains_hold_the_same_objects_where_they_have_the_same() -> None:
    paired = sampler(source_of(*REGULAR), images=7, paired=True)
    seen: set[int] = set()
    for step in range(20):
        drawn = paired.draw(step).all_domains()
        objects = rows_of(drawn) % 12  # twelve in each domain, in the same order
        assert (objects == objects[0]).all()
        assert (drawn.labels == drawn.labels[0]).all()
        seen |= set(objects[0].tolist())
        assert set(drawn.labels[0].tolist()) == {0, 1, 2}
    assert seen == set(range(12))
    apart = rows_of(sampler(source_of(*REGULAR), images=7).draw(0).all_domains()) % 12
    assert not (apart == apart[0]).all()


def test_paired_and_balanced_domains_ask_for_the_same_classes_however_many_they_have() -> None:
    unequal = (
        [0] * 9 + [1] * 2 + [2] + [0] * 1 + [1] * 9 + [2] * 2 + [0] * 4 + [1] * 8
    )  # the last lacks a class
    drawn = (
        sampler(source_of(REGULAR[0][:3], unequal, 3), images=9, balanced=True, paired=True)
        .draw(1)
        .all_domains()
    )
    of = dict(zip(drawn.domains.tolist(), drawn.labels, strict=True))
    assert torch.equal(of[0], of[1])
    assert torch.equal(of[2][of[0] < 2], of[0][of[0] < 2])


def test_every_domain_is_as_often_meta_test_and_every_pair_as_often_meta_train() -> None:
    drawn = sampler(source_of(*REGULAR), images=1)
    episodes = [drawn.draw(step) for step in range(600)]
    tested = Counter(int(episode.meta_test.domains) for episode in episodes)
    trained = Counter(frozenset(episode.meta_train.domains.tolist()) for episode in episodes)
    assert (len(tested), len(trained)) == (4, 6)
    for counts in (tested, trained):
        assert stats.chisquare(list(counts.values())).pvalue > 0.01


def test_every_image_of_a_domain_is_drawn_as_often() -> None:
    drawn = sampler(source_of(*REGULAR), images=60)
    rows = torch.cat([rows_of(samples).flatten() for step in range(20) for samples in drawn.draw(step)])
    counts = torch.bincount(rows, minlength=48)
    assert counts.min() > 0
    assert stats.chisquare(counts.view(4, 12).double().sum(dim=0).tolist()).pvalue > 0.01


def test_short_rows_of_slots_favour_no_class() -> None:
    drawn = sampler(source_of(*REGULAR), images=1)
    labels = torch.cat([drawn.draw(step).meta_train.flat_labels() for step in range(300)])
    assert stats.chisquare(torch.bincount(labels).tolist()).pvalue > 0.01


def as_lists(episode: Episode) -> list[list[int]]:
    return [rows_of(samples).flatten().tolist() for samples in episode]


def test_a_draw_depends_on_seed_and_step_alone() -> None:
    first, again, other = (sampler(source_of(*REGULAR), seed=seed) for seed in (0, 0, 1))
    drawn = [as_lists(first.draw(step)) for step in range(5)]
    assert [as_lists(again.draw(step)) for step in reversed(range(5))] == drawn[::-1]
    assert len({str(episode) for episode in drawn}) == 5
    assert as_lists(other.draw(0)) != drawn[0]


@pytest.fixture(params=[True, False])
def sources(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[Source]:
    """Of three runs that hold out one of four domains each: on the device, or read from their arrays."""
    monkeypatch.setattr(storage, "free_memory", lambda device: 10**9 if request.param else 0)
    random = np.random.default_rng(0)
    parts = [random.integers(0, 256, (12, 3, 4, 4), dtype=np.uint8) for _ in range(4)]
    kept = []
    for run in range(3):
        own = [part for place, part in enumerate(parts) if place != run]
        # Of differing numbers of training images: a later run's tables begin where the earlier ones' end.
        rows = [list(range(start, start + 12 - run)) for start in (0, 12, 24)]
        store = ImageStore(own, torch.device("cpu"))
        kept.append(Source(store, Preprocessing(4, 3, (0.5,), (0.5,)), rows, [0, 0, 1, 2] * 9, 3))
    return kept


@pytest.mark.parametrize("augmentation", [Augmentation(), Augmentation(smallest_crop=0.5, flip=0.5)])
@pytest.mark.parametrize("balanced", [True, False])
def test_a_stacked_run_gets_the_very_episodes_that_it_gets_alone(
    sources: list[Source], balanced: bool, augmentation: Augmentation
) -> None:
    seeds = [3, 1, 3]
    stacked = EpisodeSampler(
        sources,
        seeds,
        domains_per_episode=3,
        images_per_domain=6,
        class_balanced=balanced,
        augmentation=augmentation,
    )
    for step in (0, 1, 7):
        together = stacked.episode(stacked.drawn(torch.tensor(step)), torch.tensor(step))
        for run, (source, seed) in enumerate(zip(sources, seeds, strict=True)):
            alone = sampler(source, balanced=balanced, seed=seed, augmentation=augmentation).draw(step)
            for samples, own in zip(together, alone, strict=True):
                assert all(torch.equal(values[run], mine) for values, mine in zip(samples, own, strict=True))


def test_stacked_runs_store_the_images_that_they_share_once(sources: list[Source]) -> None:
    stacked = EpisodeSampler(
        sources,
        [0, 1, 2],
        domains_per_episode=3,
        images_per_domain=6,
        class_balanced=False,
        augmentation=Augmentation(),
    )
    assert [len(source.store) for source in sources] == [36, 36, 36]
    assert len(stacked.store) == 48
    assert len(sampler(sources[0]).store) == 36
    assert sampler(sources[0]).store is sources[0].store


def test_augmentation_changes_the_pixels_and_not_the_choice() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (48, 3, 4, 4), dtype=np.uint8)
    store = ImageStore([pixels], torch.device("cpu"))
    source = Source(store, Preprocessing(4, 3, (0.5,), (0.5,)), *REGULAR)
    plain = sampler(source).draw(3)
    mirrored = sampler(source, augmentation=Augmentation(flip=1.0)).draw(3)
    for before, after in zip(plain, mirrored, strict=True):
        assert torch.equal(before.labels, after.labels)
        torch.testing.assert_close(before.images.flip(-1), after.images, rtol=0, atol=1e-4)
    cropping = sampler(source, augmentation=Augmentation(smallest_crop=0.5))
    assert not torch.equal(cropping.draw(3).meta_test.images, cropping.draw(4).meta_test.images)


def test_pixels_are_preprocessed() -> None:
    source = source_of(*REGULAR)
    plain = sampler(source).draw(0).meta_test.images
    source.preprocessing = Preprocessing(1, 1, (0.5,), (0.25,))
    torch.testing.assert_close(sampler(source).draw(0).meta_test.images, (plain - 0.5) / 0.25)


def test_batches_of_a_source_hold_every_training_image_once() -> None:
    held_out = ([[0, 2, 5], [9, 7]], [0, 1, 1, 0, 1, 0, 0, 1, 1, 0], 2)
    source = source_of(*held_out)
    batches = list(source.batches(size=2))
    rows = torch.cat([(batch.images.flatten() * 255).round().long() for batch in batches]).tolist()
    assert sorted(rows) == [0, 2, 5, 7, 9]
    assert torch.cat([batch.labels for batch in batches]).tolist() == [held_out[1][row] for row in rows]
    assert len(batches) == math.ceil(5 / 2)
    assert source.domains == 2


@pytest.mark.parametrize("domains", [2, 3, 9])
def test_an_episode_has_the_domains_asked_for_or_all_that_there_are(domains: int) -> None:
    drawn = sampler(source_of(*REGULAR), domains=domains)
    assert drawn.domains == min(domains, 4)
    assert len(drawn.draw(0).meta_train.domains) == drawn.domains - 1


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("classes", [7, 12, 40])
def test_of_more_classes_than_slots_all_domains_ask_for_the_same_and_none_is_left_out(
    classes: int, balanced: bool
) -> None:
    labels = [label for _ in range(3) for label in range(classes)]
    domains = [list(range(first, first + classes)) for first in range(0, 3 * classes, classes)]
    episodes = sampler(source_of(domains, labels, classes), images=6, balanced=balanced)
    together = torch.zeros(classes, classes)
    for step in range(200):
        meta_train, meta_test = episodes.draw(step)
        asked = meta_test.labels[0]
        assert len(set(asked.tolist())) == 6
        assert (meta_train.labels == asked).all()
        together[asked.unsqueeze(1), asked] += 1
    counts = together.diagonal()
    assert counts.min() > 0.4 * 200 * 6 / classes
    # Any two classes meet, also those that are far apart in the list; of 40, few are left to later episodes.
    assert (together > 0).float().mean() > (0.9 if classes > 12 else 0.99)


def test_a_domain_that_lacks_an_asked_class_gives_any_of_its_images() -> None:
    labels = [0, 1, 2, 3, 4, 5, 6, 0, 1]
    episodes = sampler(source_of([list(range(7)), [7, 8]], labels, 7), images=3, domains=2)
    for step in range(30):
        for samples in episodes.draw(step):
            for domain, own in zip(samples.domains.tolist(), samples.labels.tolist(), strict=True):
                assert domain == 0 or set(own) <= {0, 1}
