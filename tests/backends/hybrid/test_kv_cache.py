"""What a KV cache holds after appends, growth, truncation, forks and failures."""

from __future__ import annotations

import numpy as np

from backends.hybrid.kv_cache import BLOCK, KVCache
from backends.hybrid.rows import RowShape

LAYERS, HEADS, DIM = 2, 3, 4


def rows(token_ids: list[int], layer: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows that tell which token and layer they are of: (T, K, D)."""
    marks = np.array(token_ids, np.float32)[:, None, None] + 1000 * layer
    shape = (len(token_ids), HEADS, DIM)
    return np.broadcast_to(marks, shape), np.broadcast_to(-marks, shape)


def put(cache: KVCache, token_ids: list[int]) -> None:
    for layer in range(LAYERS):
        cache.append(layer, *rows(token_ids, layer))
    cache.commit(np.array(token_ids, np.int32))


def assert_holds(cache: KVCache, token_ids: list[int]) -> None:
    assert cache.token_ids.tolist() == token_ids
    assert cache.length == len(token_ids)
    for layer in range(LAYERS):
        nothing = np.empty((0, HEADS, DIM), np.float32)
        keys, values = cache.append(layer, nothing, nothing)
        expected_keys, expected_values = rows(token_ids, layer)
        np.testing.assert_array_equal(keys, expected_keys.transpose(1, 0, 2))
        np.testing.assert_array_equal(values, expected_values.transpose(1, 0, 2))


def test_tokens_follow_each_other_over_many_growths() -> None:
    cache = KVCache([RowShape(HEADS, DIM)] * LAYERS)
    everything: list[int] = []
    for size in [1, 1, 70, 3, 200, 1]:
        new = list(range(len(everything), len(everything) + size))
        put(cache, new)
        everything += new
        assert_holds(cache, everything)


def test_append_returns_what_is_committed_and_what_is_new() -> None:
    cache = KVCache([RowShape(HEADS, DIM)] * LAYERS)
    put(cache, [5, 6])
    keys, values = cache.append(1, *rows([7], 1))
    np.testing.assert_array_equal(keys[:, :, 0], [[1005, 1006, 1007]] * HEADS)
    np.testing.assert_array_equal(values[:, :, 0], [[-1005, -1006, -1007]] * HEADS)


def test_memory_is_taken_as_it_is_used() -> None:
    cache = KVCache([RowShape(HEADS, DIM)] * LAYERS)
    assert cache.size_bytes == 0
    put(cache, [1])
    per_token = LAYERS * 2 * HEADS * DIM * 4
    assert cache.size_bytes == BLOCK * per_token
    cache.reserve(BLOCK + 1)
    assert cache.size_bytes == cache.bytes_for(BLOCK + 1) == 2 * BLOCK * per_token
    assert_holds(cache, [1])


def test_rows_that_were_not_committed_do_not_count() -> None:
    cache = KVCache([RowShape(HEADS, DIM)] * LAYERS)
    put(cache, [1, 2])
    cache.append(0, *rows([9] * 100, 0))  # and then the run failed, before layer 1
    assert_holds(cache, [1, 2])
    put(cache, [3])
    assert_holds(cache, [1, 2, 3])


def test_truncate_and_go_on_differently() -> None:
    cache = KVCache([RowShape(HEADS, DIM)] * LAYERS)
    put(cache, [1, 2, 3, 4])
    cache.truncate(2)
    put(cache, [8])
    assert_holds(cache, [1, 2, 8])
    cache.truncate(99)
    assert_holds(cache, [1, 2, 8])


def test_a_fork_is_independent() -> None:
    cache = KVCache([RowShape(HEADS, DIM)] * LAYERS)
    put(cache, [1, 2, 3])
    fork = cache.fork(2)
    put(fork, [7])
    put(cache, [4])
    cache.truncate(1)
    put(cache, [5])
    assert_holds(fork, [1, 2, 7])
    assert_holds(cache, [1, 5])


def filled(length: int) -> KVCache:
    cache = KVCache([RowShape(1, 2)])
    cache.reserve(length)
    rows = np.arange(2 * length, dtype=np.float32).reshape(length, 1, 2)
    cache.append(0, rows, rows)
    cache.commit(np.arange(length, dtype=np.int32))
    return cache


def test_room_is_taken_when_it_is_needed_and_a_quarter_more_of_what_there_was() -> None:
    cache = filled(16 * BLOCK)
    assert cache.capacity == 16 * BLOCK  # exactly full
    one = np.zeros((1, 1, 2), np.float32)
    cache.append(0, one, one)
    assert cache.capacity == 20 * BLOCK
    assert filled(BLOCK).next_capacity == 2 * BLOCK


def test_a_fork_has_the_room_it_is_given_and_no_tokens_that_are_not_there() -> None:
    cache = filled(10)
    fork = cache.fork(5, room=BLOCK + 1)
    assert (fork.length, fork.capacity) == (5, 2 * BLOCK)
    assert fork.size_bytes == cache.fork_bytes(BLOCK + 1)
    assert cache.fork(99).length == 10
