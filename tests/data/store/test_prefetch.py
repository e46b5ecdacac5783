"""Images that are read ahead: the same ones, in the same order, in memory that is used again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from metavib.data.episodes import Drawn, EpisodeSampler, Source
from metavib.data.store.prefetch import AHEAD, Prefetcher
from metavib.data.store.storage import ImageStore
from metavib.data.transforms import Augmentation, Preprocessing


@pytest.fixture
def sampler() -> EpisodeSampler:
    """Episodes of three domains, whose images stay where they are."""
    random = np.random.default_rng(0)
    parts = [random.integers(0, 256, (8, 1, 4, 4), dtype=np.uint8) for _ in range(3)]
    store = ImageStore(parts, torch.device("cpu"), resident=False)
    rows = [list(range(start, start + 8)) for start in (0, 8, 16)]
    return EpisodeSampler(
        [Source(store, Preprocessing(4, 1, (0.0,), (1.0,)), rows, [0, 1] * 12, 2)],
        [5],
        domains_per_episode=3,
        images_per_domain=4,
        class_balanced=False,
        augmentation=Augmentation(),
    )


def assert_equal(arrived: Drawn, expected: Drawn) -> None:
    assert all(torch.equal(mine, other) for mine, other in zip(arrived, expected, strict=True))


@pytest.mark.parametrize("first", [0, 1, 7, 19])
def test_the_images_of_step_after_step_arrive_from_the_first_to_the_last(
    sampler: EpisodeSampler, first: int
) -> None:
    prefetcher = Prefetcher(sampler, first, steps=20)
    for step in range(first, 20):
        assert prefetcher.next_step == step
        assert_equal(prefetcher.next(), sampler.drawn(step))


def test_the_next_steps_are_read_while_one_is_trained_on_and_none_beyond_the_last(
    sampler: EpisodeSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    draw = sampler.drawn
    monkeypatch.setattr(sampler, "drawn", lambda step, into: asked.append(step) or draw(step, into))
    prefetcher = Prefetcher(sampler, 2, steps=8)
    for step in range(2, 8):
        prefetcher.next()
        assert list(prefetcher.waiting) == list(range(step + 1, min(step + 1 + AHEAD, 8)))
    assert asked == [2, 3, 4, 5, 6, 7]  # each once, in order


def test_memory_is_used_again_but_not_while_its_images_are_trained_on(sampler: EpisodeSampler) -> None:
    prefetcher = Prefetcher(sampler, 0, steps=20)
    places = []
    for step in range(20):
        arrived = prefetcher.next()
        for reading in list(prefetcher.waiting.values()):
            reading.result()
        assert_equal(arrived, sampler.drawn(step))  # after all that is read ahead has been read
        places.append(arrived.pixels.data_ptr())
    assert len(set(places)) == AHEAD + 2
    assert places == (places[: AHEAD + 2] * 5)[:20]


def test_what_cannot_be_read_is_an_error_where_it_is_needed(
    sampler: EpisodeSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = sampler.drawn

    def broken_at_3(step: int, into: torch.Tensor | None) -> Drawn:
        if step == 3:
            raise OSError("the disk is gone")
        return draw(step, into)

    monkeypatch.setattr(sampler, "drawn", broken_at_3)
    prefetcher = Prefetcher(sampler, 0, steps=20)
    for _ in range(3):
        prefetcher.next()
    with pytest.raises(OSError, match="the disk is gone"):
        prefetcher.next()
