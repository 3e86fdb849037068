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
    assert ids[0] == 1234
    assert 2498 <= len(ids) <= 2501
    assert len(ids) > sampling._FIRST_CANDIDATES


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
    class Ending(np.random.Generator):
        def random(self) -> float:  # type: ignore[override]  # only the form without arguments is used
            return math.nextafter(1.0, 0.0)

    chosen = choose(HALVES, Sampling(), NOTHING, Ending(np.random.PCG64(0)))
    assert chosen == 4


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
