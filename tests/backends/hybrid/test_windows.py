"""Caches of layers that do not keep all: what is left, what a snapshot brings back, what it takes.

Rows hold their token's id, so that a wrong row is seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from backends.hybrid.cache_pool import CachePool
from backends.hybrid.kv_cache import MOST_SNAPSHOTS, KVCache
from backends.hybrid.rows import BLOCK, SPARE, RowShape

REACH, TAPS = 30, 6
FULL, SLIDING = RowShape(2, 3), RowShape(2, 3, reach=REACH)
CONV = RowShape(1, 5, arrays=1, reach=TAPS)
SHAPES = (FULL, SLIDING, CONV)


def put(cache: KVCache, token_ids: Sequence[int], calls: int = 1) -> None:
    """Append tokens in some calls, and check what every layer sees in each."""
    for part in np.array_split(np.array(token_ids, np.int32), calls):
        rows = np.broadcast_to(part[:, None, None], (len(part), 2, 3)).astype(np.float32)
        state = np.full((TAPS, 5), np.nan, np.float32)
        cache.read_inputs(2, cache.length, state)
        before = np.concatenate([np.zeros(TAPS, np.int32), cache.token_ids])[-TAPS:]
        np.testing.assert_array_equal(state, np.broadcast_to(before[:, None], state.shape))
        everything = [*cache.token_ids, *part]
        keys, values = cache.append(0, rows, -rows)
        np.testing.assert_array_equal(keys[1, :, 0], everything)
        np.testing.assert_array_equal(values[0, :, 2], np.negative(everything))
        keys, values = cache.append(1, rows, -rows)
        seen = min(len(everything), REACH + len(part))
        np.testing.assert_array_equal(keys[0, -seen:, 1], everything[-seen:])
        np.testing.assert_array_equal(values[1, -seen:, 1], np.negative(everything[-seen:]))
        cache.append_inputs(2, rows[:, 0, :1].repeat(5, axis=1))
        cache.commit(part)


def filled(length: int, calls: int = 7) -> KVCache:
    cache = KVCache(SHAPES, BLOCK)
    put(cache, range(1, length + 1), calls)
    return cache


@pytest.mark.parametrize("calls", [7, 40, 333])
def test_rows_far_back_are_forgotten_and_near_ones_never(calls: int) -> None:
    cache = filled(333, calls)
    bounded = KVCache([SLIDING, CONV], BLOCK).bytes_for(10**6)
    assert cache.size_bytes == KVCache([FULL], BLOCK).bytes_for(cache.capacity) + bounded
    assert bounded <= (REACH + SPARE + BLOCK) * 48 + (TAPS + SPARE + BLOCK) * 20
    put(cache, [900, 901], 2)


def test_a_short_tail_can_be_cut_off_without_a_snapshot() -> None:
    cache = filled(500)
    for length in (500, 499, 500 - SPARE):
        assert cache.resumable(length) == length
    assert cache.resumable(200) == 0
    cache.truncate(500 - SPARE)
    assert cache.length == 500 - SPARE
    put(cache, range(700, 760), 3)


def test_a_snapshot_brings_every_layer_back() -> None:
    cache = filled(200)
    cache.snapshot()
    put(cache, range(300, 500), 9)
    assert cache.resumable(250) == 200
    assert cache.resumable(200 - SPARE) == 200 - SPARE
    assert cache.resumable(200 - SPARE - 1) == 0
    fork = cache.fork(250, room=300)
    assert fork.length == 200
    put(fork, range(800, 900), 5)
    cache.truncate(190)
    assert (cache.length, cache.snapshot_lengths) == (190, [190])
    put(cache, range(600, 800), 9)
    cache.truncate(195)
    assert cache.length == 190
    put(cache, [5], 1)
    put(fork, range(800, 900), 5)


def test_a_snapshot_is_not_changed_by_what_comes_after() -> None:
    cache = filled(100)
    cache.snapshot()
    for _ in range(3):
        put(cache, range(300, 500), 9)
        cache.truncate(100)
    put(cache, range(300, 320), 2)


def test_with_nothing_to_come_back_to_a_sequence_begins_anew() -> None:
    cache = filled(300)
    cache.truncate(100)
    assert cache.length == 0
    put(cache, range(50, 90), 4)


def test_a_run_that_fails_after_rows_have_moved_leaves_the_cache_as_it_was() -> None:
    cache = filled(333)
    rows = np.zeros((BLOCK, 2, 3), np.float32)
    for _ in range(3):
        cache.append(1, rows, rows)
    put(cache, range(400, 430), 3)


def test_snapshots_that_stand_close_go_first() -> None:
    cache = KVCache(SHAPES, BLOCK)
    for _ in range(MOST_SNAPSHOTS - 1):
        put(cache, range(100))
        cache.snapshot()
    put(cache, range(10))
    cache.snapshot()
    put(cache, range(100))
    cache.snapshot()
    assert len(cache.snapshot_lengths) == MOST_SNAPSHOTS
    assert cache.snapshot_lengths == [*range(100, 701, 100), 810]
    assert cache.size_bytes == cache.bytes_for(1)


def test_full_layers_need_no_snapshots() -> None:
    cache = KVCache([FULL], BLOCK)
    assert cache.next_snapshot_bytes == 0
    cache.snapshot()
    assert cache.snapshot_lengths == []


def test_float16_takes_half_the_memory() -> None:
    half = KVCache([RowShape(2, 3, fp16=True)])
    assert 2 * half.bytes_for(1000) == KVCache([RowShape(2, 3)]).bytes_for(1000)
    rows = np.full((1, 2, 3), 1 / 3, np.float32)
    keys, _ = half.append(0, rows, rows)
    assert keys.dtype == np.float16


def test_a_pool_resumes_at_snapshots_and_keeps_to_its_budget() -> None:
    def ids(*parts: range) -> np.ndarray:
        return np.array([number for part in parts for number in part], np.int32)

    def run(pool: CachePool, prompt: np.ndarray) -> tuple[int, list[int]]:
        cache = pool.take(prompt)
        cached = cache.length
        put(cache, prompt[cached:].tolist(), 5)
        pool.remember(cache)
        pool.give_back(cache)
        return cached, cache.snapshot_lengths

    roomy = CachePool(lambda: KVCache(SHAPES, BLOCK), 10**6)
    first = ids(range(1, 201))
    assert run(roomy, first) == (0, [200])
    longer = np.concatenate([first, ids(range(400, 500))])
    assert run(roomy, longer) == (200, [200, 300])
    assert run(roomy, np.concatenate([longer[:250], ids(range(600, 620))])) == (200, [200, 270])
    assert run(roomy, longer) == (299, [200, 299, 300])
    needed = KVCache(SHAPES, BLOCK).bytes_for(200)
    tight = CachePool(lambda: KVCache(SHAPES, BLOCK), needed + 100)
    assert run(tight, first) == (0, [])
