from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from metavib.nn.randomness import bits, fold, key_of, normal, permutation, uniform

KEY = key_of(0, "test")
MASK = 2**64 - 1


def splitmix64(seed: int, count: int) -> list[int]:
    """Steele, Lea and Flood's generator in Python's own integers, as signed 64-bit numbers."""
    words = []
    for counter in range(1, count + 1):
        word = (seed + counter * 0x9E3779B97F4A7C15) & MASK
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
        word ^= word >> 31
        words.append(word - 2**64 if word >= 2**63 else word)
    return words


def correlation(first: Tensor, second: Tensor) -> float:
    return torch.corrcoef(torch.stack([first, second]))[0, 1].item()


def test_bits_are_the_published_values_of_splitmix64() -> None:
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [word & MASK for word in bits(1234567, (4,)).tolist()] == published


@settings(max_examples=30, deadline=None)
@given(st.integers(-(2**63), 2**63 - 1))
def test_bits_are_those_of_splitmix64_for_every_key(key: int) -> None:
    assert bits(key, (5,)).tolist() == splitmix64(key, 5)


def test_a_key_is_a_signed_64_bit_number_of_its_parts_and_their_types() -> None:
    keys = [key_of(1, "a"), key_of(2, "a"), key_of(1, "b"), key_of(1, "a", 0), key_of("1", "a"), key_of("1a")]
    assert len(set(keys)) == len(keys)
    assert all(-(2**63) <= key < 2**63 for key in keys)
    assert key_of(1, "a") == 9221374186959825746  # keys of old runs must stay what they are


@pytest.mark.parametrize("draw", [bits, uniform, normal])
def test_the_same_key_gives_the_same_draws_and_another_key_others(draw) -> None:
    first, again = draw(KEY, (100,)), draw(KEY, (100,))
    assert torch.equal(first, again)
    for other in (key_of(1, "test"), key_of(0, "another"), KEY + 1):
        assert (first == draw(other, (100,))).sum() <= 1


@pytest.mark.parametrize("draw", [bits, uniform, normal])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 5), (0,), (3, 0, 2)])
def test_many_keys_at_once_give_what_each_gives_alone(draw, shape: tuple[int, ...]) -> None:
    keys = torch.tensor([[key_of(run, "test") for run in range(3)], [0, -1, 2**63 - 1]])
    together = draw(keys, shape)
    assert together.shape == (2, 3, *shape)
    for row in range(2):
        for column in range(3):
            assert torch.equal(together[row, column], draw(int(keys[row, column]), shape))


def test_draws_are_float32_and_no_global_generator_is_touched() -> None:
    before = torch.get_rng_state()
    assert uniform(KEY, (3,)).dtype == normal(KEY, (3,)).dtype == torch.float32
    assert bits(KEY, (3,)).dtype == permutation(KEY, 3).dtype == torch.int64
    assert torch.equal(before, torch.get_rng_state())


def test_draws_do_not_depend_on_a_key_being_a_number_or_a_tensor() -> None:
    assert torch.equal(normal(KEY, (7,)), normal(torch.tensor(KEY), (7,)))


def test_uniform_draws_are_uniform_on_zero_to_one() -> None:
    draws = uniform(KEY, (50_000,))
    assert 0 <= draws.min() < 1e-3
    assert 1 - 1e-3 < draws.max() < 1
    assert stats.kstest(draws.numpy(), "uniform").pvalue > 0.01


def test_normal_draws_are_standard_normal() -> None:
    draws = normal(KEY, (50_001,))
    assert stats.kstest(draws.numpy(), "norm").pvalue > 0.01
    moments = [draws.double().pow(power).mean().item() for power in (1, 2, 3, 4)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=5 * math.sqrt(96 / 50_000))
    assert 3.5 < draws.abs().max() < 6.67


def test_the_two_normal_draws_of_one_word_are_independent() -> None:
    draws = normal(KEY, (40_000,))
    first, second = draws.chunk(2)
    assert abs(correlation(first, second)) < 4 / math.sqrt(20_000)
    assert abs(correlation(first.square(), second.square())) < 4 / math.sqrt(20_000)


def test_neighbouring_keys_steps_and_positions_are_not_correlated() -> None:
    count = 20_000
    draws = normal(KEY, (count,))
    steps = torch.stack([fold(KEY, step) for step in range(4)])
    others = [normal(KEY + 1, (count,)), *normal(steps, (count,)), draws.roll(1), draws.roll(2)]
    assert max(abs(correlation(draws, other)) for other in others) < 4 / math.sqrt(count)
    by_step = normal(torch.stack([fold(KEY, step) for step in range(2_000)]), (2,))
    assert abs(correlation(by_step[:-1, 0], by_step[1:, 0])) < 4 / math.sqrt(2_000)
    assert stats.kstest(by_step[:, 0].numpy(), "norm").pvalue > 0.01


def test_every_bit_of_a_word_is_one_in_half_of_the_draws() -> None:
    words = bits(KEY, (20_000,))
    shares = torch.stack([(words >> place & 1).double().mean() for place in range(64)])
    assert (shares - 0.5).abs().max() < 4.5 * 0.5 / math.sqrt(20_000)


def test_fold_gives_every_step_a_key_of_its_own() -> None:
    keys = [int(fold(KEY, step)) for step in range(1_000)]
    others = [int(fold(key_of(1, "test"), step)) for step in range(1_000)]
    assert len({KEY, *keys, *others}) == 2_001


def test_fold_of_many_keys_or_numbers_is_that_of_each() -> None:
    keys = torch.tensor([KEY, 5, -7])
    assert fold(keys, 3).tolist() == [int(fold(int(key), 3)) for key in keys]
    assert fold(KEY, torch.tensor(3)) == fold(KEY, 3)


@settings(max_examples=30, deadline=None)
@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 50))
def test_a_permutation_has_everything_once(key: int, count: int) -> None:
    assert sorted(permutation(key, count).tolist()) == list(range(count))


def test_all_permutations_of_three_are_equally_frequent() -> None:
    orders = [tuple(permutation(key_of(seed, "order"), 3).tolist()) for seed in range(1_200)]
    assert stats.chisquare([orders.count(order) for order in sorted(set(orders))]).pvalue > 0.01
    assert len(set(orders)) == 6
