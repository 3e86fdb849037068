"""Sampling against tables worked out by hand, and against counting."""

from __future__ import annotations

import math

import numpy as np
import pytest

from backends.base import Sampling
from backends.hybrid import sampling
from backends.hybrid.sampling import History, adjust, choose, distribution, generator, top_logprobs

# Probabilities 0.5, 0.25, 0.125, 0.0625, 0.0625 for tokens 2, 0, 4, 1, 3.
HALVES = np.log2(np.array([4, 1, 8, 1, 2])).astype(np.float32) * np.float32(math.log(2))


def history(prompt: list[int], answer: list[int]) -> History:
    result = History(np.array(prompt, np.int32))
    for token_id in answer:
        result.add(token_id)
    return result


NOTHING = history([], [])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (Sampling(), {0: 4 / 16, 1: 1 / 16, 2: 8 / 16, 3: 1 / 16, 4: 2 / 16}),
        (Sampling(temperature=0.5), {0: 16 / 86, 1: 1 / 86, 2: 64 / 86, 3: 1 / 86, 4: 4 / 86}),
        (Sampling(top_k=1), {2: 1}),
        (Sampling(top_k=3), {2: 8 / 14, 0: 4 / 14, 4: 2 / 14}),
        (Sampling(top_k=4), {2: 8 / 15, 0: 4 / 15, 4: 2 / 15, 1: 1 / 15}),  # 1 and 3 are equal: the lower id
        (Sampling(top_k=99), {0: 4 / 16, 1: 1 / 16, 2: 8 / 16, 3: 1 / 16, 4: 2 / 16}),
        (Sampling(top_p=0.49), {2: 1}),
        (Sampling(top_p=0.51), {2: 8 / 12, 0: 4 / 12}),
        (Sampling(top_p=0.9), {2: 8 / 15, 0: 4 / 15, 4: 2 / 15, 1: 1 / 15}),
        (Sampling(top_p=0.0), {2: 1}),
        (Sampling(min_p=0.24), {2: 8 / 14, 0: 4 / 14, 4: 2 / 14}),
        (Sampling(min_p=0.3), {2: 8 / 12, 0: 4 / 12}),
        (Sampling(min_p=1.0), {2: 1}),
        (Sampling(top_k=3, top_p=0.57), {2: 1}),  # 8/14 = 0.571: top_p cuts what top_k left
        (Sampling(top_k=2, min_p=0.24), {2: 8 / 12, 0: 4 / 12}),
        (Sampling(temperature=0.5, min_p=0.24), {2: 64 / 80, 0: 16 / 80}),  # 1/4 of the tempered maximum
        (Sampling(temperature=0.5, top_p=0.75), {2: 64 / 80, 0: 16 / 80}),  # 64/86 = 0.744
    ],
)
def test_distribution(settings: Sampling, expected: dict[int, float]) -> None:
    ids, probabilities = distribution(HALVES, settings)
    probabilities = probabilities / probabilities.sum()
    assert dict(zip(ids.tolist(), probabilities.tolist(), strict=True)) == pytest.approx(expected, rel=1e-6)


def test_the_nucleus_of_a_flat_distribution_is_found_beyond_the_first_candidates() -> None:
    logits = np.zeros(5000, np.float32)
    logits[1234] = 1e-3
    ids, _ = distribution(logits, Sampling(top_p=0.5))
    assert 1234 in ids
    assert (np.diff(ids) > 0).all()
    assert 2498 <= len(ids) <= 2501
    assert len(ids) > sampling._FIRST_CANDIDATES


def test_a_nucleus_that_is_reached_exactly_ends_there() -> None:
    assert distribution(np.zeros(4, np.float32), Sampling(top_p=0.5))[0].tolist() == [0, 1]
    assert distribution(np.zeros(8, np.float32), Sampling(top_k=4, top_p=0.5))[0].tolist() == [0, 1]


@pytest.mark.parametrize(
    "settings",
    [
        Sampling(),
        Sampling(top_k=3),
        Sampling(top_p=0.999),
        Sampling(min_p=0.001),
        Sampling(top_k=3, top_p=0.999, min_p=0.001),
    ],
)
def test_noise_that_swaps_equally_likely_tokens_does_not_change_what_a_seed_draws(settings: Sampling) -> None:
    """Logits differ by 2e-5 when part of the prompt comes from a cache. Tokens 1 and 3 are equally likely."""
    logits = np.array([-30.0, 2.0, 0.0, 2.0, -30.0], np.float32)
    noise = np.array([0.0, 1e-5, 0.0, -1e-5, 0.0], np.float32)
    drawn = [
        [choose(logits + sign * noise, settings, NOTHING, generator(seed)) for seed in range(200)]
        for sign in (1, -1)
    ]
    assert drawn[0] == drawn[1]
    assert {1, 2, 3} == set(drawn[0])


class Fixed(np.random.Generator):
    """Draws one number again and again."""

    def __init__(self, number: float) -> None:
        super().__init__(np.random.PCG64(0))
        self._number = number

    def random(self) -> float:  # type: ignore[override]  # only the form without arguments is used
        return self._number


def test_a_token_of_no_probability_is_never_drawn_and_borders_belong_to_the_next() -> None:
    logits = np.array([-np.inf, 0.0, -np.inf, 0.0], np.float32)
    drawn = [choose(logits, Sampling(), NOTHING, Fixed(number)) for number in (0.0, 0.25, 0.5, 0.75)]
    assert drawn == [1, 1, 3, 3]


def test_of_many_equals_the_lower_ids_come_first() -> None:
    flat = np.zeros(1000, np.float32)
    assert distribution(flat, Sampling(top_p=0.3))[0].tolist() == list(range(300))
    assert distribution(flat, Sampling(top_k=100, top_p=0.3))[0].tolist() == list(range(30))
    assert [token_id for token_id, _ in top_logprobs(flat, 0, 20)[1]] == list(range(20))


def test_the_best_come_best_first_and_among_equals_by_id() -> None:
    logits = (np.arange(1000) * 7919 % 9).astype(np.float32)
    expected = sorted(range(1000), key=lambda token_id: (-logits[token_id], token_id))
    assert [token_id for token_id, _ in top_logprobs(logits, 0, 300)[1]] == expected[:300]


def test_large_logits_do_not_overflow() -> None:
    logits = np.array([1e30, -1e30, 1e30], np.float32)
    ids, probabilities = distribution(logits, Sampling(temperature=0.01))
    assert dict(zip(ids.tolist(), probabilities.tolist(), strict=True)) == {0: 0.5, 1: 0, 2: 0.5}


def test_repeat_penalty_divides_or_multiplies_once_over_prompt_and_answer() -> None:
    logits = np.array([2.0, -2.0, 3.0, -3.0, 0.0], np.float32)
    got = adjust(logits, Sampling(repeat_penalty=2.0), history([0, 0, 1], [3, 3]))
    assert got.tolist() == [1.0, -4.0, 3.0, -6.0, 0.0]
    assert logits.tolist() == [2.0, -2.0, 3.0, -3.0, 0.0]  # the argument is as it was


def test_presence_and_frequency_penalties_count_the_answer_only() -> None:
    logits = np.full(4, 10.0, np.float32)
    got = adjust(logits, Sampling(presence_penalty=1.0, frequency_penalty=0.25), history([0, 1], [1, 1, 2]))
    assert got.tolist() == [10.0, 10 - 1 - 0.5, 10 - 1 - 0.25, 10.0]
    negative = adjust(logits, Sampling(frequency_penalty=-1.0), history([], [3, 3]))
    assert negative.tolist() == [10.0, 10.0, 10.0, 12.0]


def test_bias_is_added_after_the_penalties() -> None:
    logits = np.array([4.0, 1.0, 1.0], np.float32)
    got = adjust(logits, Sampling(repeat_penalty=2.0, logit_bias={0: -1.0, 2: 5.0}), history([0, 2], []))
    assert got.tolist() == [4 / 2 - 1, 1.0, 1 / 2 + 5]


def test_neutral_settings_leave_the_logits_alone() -> None:
    assert adjust(HALVES, Sampling(temperature=0.3, top_k=2), history([1], [2])) is HALVES


def test_greedy_takes_the_highest_of_the_penalised_logits_and_draws_nothing() -> None:
    rng = generator(1)
    settings = Sampling(temperature=0, presence_penalty=2.0)
    assert choose(HALVES, settings, NOTHING, rng) == 2
    assert choose(HALVES, settings, history([], [2]), rng) == 0
    assert choose(HALVES, Sampling(temperature=0, logit_bias={1: 100.0}), NOTHING, rng) == 1
    assert rng.random() == generator(1).random()


def test_choices_follow_the_probabilities() -> None:
    rng = generator(7)
    draws = 20_000
    chosen = np.bincount([choose(HALVES, Sampling(), NOTHING, rng) for _ in range(draws)], minlength=5)
    expected = np.array([4, 1, 8, 1, 2]) / 16 * draws
    assert ((chosen - expected) ** 2 / expected).sum() < 18.5  # chi square, 4 degrees: 0.1 % beyond


@pytest.mark.parametrize("seed", [0, 1, -5, 2**63, 2**80])
def test_a_seed_repeats_its_choices(seed: int) -> None:
    def draw() -> list[int]:
        rng = generator(seed)
        return [choose(HALVES, Sampling(), NOTHING, rng) for _ in range(30)]

    assert draw() == draw()


def test_without_a_seed_choices_differ() -> None:
    assert generator(None).random() != generator(None).random()


def test_a_draw_at_the_very_end_still_finds_a_token() -> None:
    assert choose(HALVES, Sampling(), NOTHING, Fixed(math.nextafter(1.0, 0.0))) == 4


def test_logprobs_are_of_the_raw_logits() -> None:
    logprob, best = top_logprobs(HALVES, 4, 3)
    assert logprob == pytest.approx(math.log(1 / 8), rel=1e-6)
    assert [token_id for token_id, _ in best] == [2, 0, 4]
    assert [value for _, value in best] == pytest.approx(
        [math.log(p) for p in (1 / 2, 1 / 4, 1 / 8)], rel=1e-6
    )
    assert top_logprobs(HALVES, 4, 0) == (logprob, [])
    everything = top_logprobs(HALVES, 4, 20)[1]
    assert math.fsum(math.exp(value) for _, value in everything) == pytest.approx(1)
