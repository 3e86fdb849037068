"""Which cache a prompt gets, and what is dropped for it."""

from __future__ import annotations

import numpy as np

from backends.hybrid.cache_pool import CHEAP_TAIL, CachePool, common_prefix
from backends.hybrid.kv_cache import BLOCK, KVCache
from backends.hybrid.rows import RowShape

PER_TOKEN = 8  # one layer, one head, one dimension: a float32 key and value
BLOCK_BYTES = BLOCK * PER_TOKEN


def ids(*ranges: range | int | np.ndarray) -> np.ndarray:
    flat = [number for part in ranges for number in ([part] if isinstance(part, int) else part)]
    return np.array(flat, np.int32)


def pool_of(blocks: int) -> CachePool:
    return CachePool(lambda: KVCache([RowShape(1, 1)]), blocks * BLOCK_BYTES)


def run(pool: CachePool, prompt: np.ndarray) -> int:
    """Take a cache, fill in what it lacks, give it back; return how many tokens were cached.

    Each row holds its token's id, so that a cache with wrong contents is found.
    """
    cache = pool.take(prompt)
    cached = cache.length
    assert cached < len(prompt)
    np.testing.assert_array_equal(cache.token_ids, prompt[:cached])
    new = prompt[cached:]
    marks = new.astype(np.float32)[:, None, None]
    keys, _ = cache.append(0, marks, marks)
    np.testing.assert_array_equal(keys[0, :, 0], prompt)
    cache.commit(new)
    pool.give_back(cache)
    return cached


def test_common_prefix() -> None:
    assert common_prefix(ids(1, 2, 3), ids(1, 2, 4, 5)) == 2
    assert common_prefix(ids(1, 2), ids(1, 2, 3)) == 2
    assert common_prefix(ids(9), ids(1)) == 0
    assert common_prefix(ids(), ids(1)) == 0


def test_a_longer_chat_extends_a_shorter_one() -> None:
    pool = pool_of(100)
    assert run(pool, ids(range(50))) == 0
    assert run(pool, ids(range(80))) == 50
    assert run(pool, ids(range(80), 5, 6)) == 80
    assert pool.idle_bytes == 2 * BLOCK_BYTES  # it is still one cache


def test_the_last_token_of_a_prompt_is_always_run() -> None:
    pool = pool_of(100)
    run(pool, ids(range(50)))
    assert run(pool, ids(range(50))) == 49


def test_nobody_meets_the_cache_of_another() -> None:
    pool = pool_of(100)
    secret = ids(range(50))
    for owner, cached in (("alice", 0), ("mallory", 0), ("alice", 49), ("mallory", 49), ("", 0)):
        cache = pool.take(secret, owner)
        assert cache.length == cached, owner
        new = secret[cache.length :]
        marks = new.astype(np.float32)[:, None, None]
        cache.append(0, marks, marks)
        cache.commit(new)
        pool.give_back(cache)


def test_a_request_sent_again_leaves_no_copies() -> None:
    pool = pool_of(100)
    other = ids(range(200, 300))
    run(pool, other)
    before = pool.idle_bytes
    prompt, answer = ids(range(50)), ids(range(100, 150))
    for _ in range(20):
        cache = pool.take(prompt)
        new = ids(prompt, answer)[cache.length :]
        marks = new.astype(np.float32)[:, None, None]
        cache.append(0, marks, marks)
        cache.commit(new)
        pool.give_back(cache)
    assert pool.idle_bytes == before + 2 * BLOCK_BYTES
    assert run(pool, other) == 99


def test_conversations_in_turn_keep_their_own() -> None:
    pool = pool_of(100)
    system = range(40)
    chats = [ids(system, range(1000 * chat, 1000 * chat + 60)) for chat in (1, 2, 3)]
    assert [run(pool, chat) for chat in chats] == [0, 40, 40]
    longer = [np.concatenate([chat, ids(7, 8, 9)]) for chat in chats]
    assert [run(pool, chat) for chat in longer] == [100, 100, 100]


def test_the_longest_prefix_wins() -> None:
    pool = pool_of(100)
    run(pool, ids(range(30), range(500, 600)))
    run(pool, ids(range(70), range(600, 700)))
    assert run(pool, ids(range(90))) == 70


def test_a_short_tail_is_cut_off_without_a_copy() -> None:
    pool = pool_of(100)
    run(pool, ids(range(50 + CHEAP_TAIL)))
    assert run(pool, ids(range(50), 7)) == 50
    assert pool.idle_bytes == 2 * BLOCK_BYTES
    run(pool, ids(range(50), range(900, 901 + CHEAP_TAIL)))
    assert run(pool, ids(range(50), 8)) == 50
    assert pool.idle_bytes == 2 * BLOCK_BYTES + BLOCK_BYTES  # one more: this tail was worth keeping


def test_without_room_for_a_copy_the_tail_is_cut_off() -> None:
    pool = pool_of(2)
    run(pool, ids(range(120)))
    assert run(pool, ids(range(60), range(500, 520))) == 60
    assert pool.idle_bytes == 2 * BLOCK_BYTES


def test_a_copy_is_made_where_its_blocks_fit_and_not_where_only_its_tokens_would() -> None:
    tight = CachePool(lambda: KVCache([RowShape(1, 1)]), 3 * BLOCK_BYTES - 1)
    run(tight, ids(range(60)))
    assert run(tight, ids(range(30), range(700, 740))) == 30  # 70 tokens: 2 blocks beside the one
    assert tight.idle_bytes == 2 * BLOCK_BYTES
    assert run(tight, ids(range(60), 1)) == 30  # the tail was cut off
    just = pool_of(3)
    run(just, ids(range(60)))
    assert run(just, ids(range(30), range(700, 700 + 2 * BLOCK - 30))) == 30  # 2 blocks, full
    assert just.idle_bytes == 3 * BLOCK_BYTES
    assert run(just, ids(range(60), 1)) == 60


def test_a_copy_of_a_large_cache_takes_room_for_its_own_prompt_only() -> None:
    pool = pool_of(6)
    run(pool, ids(range(5000, 5060)))
    run(pool, ids(range(4 * BLOCK)))
    assert run(pool, ids(range(30), range(700, 720))) == 30
    assert pool.idle_bytes == 6 * BLOCK_BYTES  # nothing had to go
    assert run(pool, ids(range(5000, 5060), 1)) == 60


def test_the_least_recently_used_goes_first() -> None:
    pool = pool_of(3)
    a, b, c, d = (ids(range(start, start + 60)) for start in (1000, 2000, 3000, 4000))
    for prompt in (a, b, c):
        run(pool, prompt)
    assert run(pool, a) == 59  # used again
    run(pool, d)
    assert pool.idle_bytes == 3 * BLOCK_BYTES
    assert run(pool, b) == 0  # dropped for d; and now c goes for b
    assert [run(pool, prompt) for prompt in (d, a, b)] == [59, 59, 59]
    assert run(pool, c) == 0


def test_the_cache_to_be_copied_is_not_evicted_for_the_copy() -> None:
    pool = pool_of(3)
    run(pool, ids(range(5000, 5060)))
    run(pool, ids(range(60)))
    assert run(pool, ids(range(30), range(700, 760))) == 30
    assert run(pool, ids(range(60), 1)) == 60


def test_nor_if_it_was_used_longest_ago() -> None:
    pool = pool_of(3)
    run(pool, ids(range(60)))
    run(pool, ids(range(5000, 5060)))
    assert run(pool, ids(range(30), range(700, 760))) == 30
    assert run(pool, ids(range(60), 1)) == 60


def test_of_equal_prefixes_the_shortest_tail_goes() -> None:
    pool = pool_of(100)
    shared = range(50)
    long, short = (ids(shared, range(start, start + size)) for start, size in ((700, 20), (800, CHEAP_TAIL)))
    run(pool, long)
    run(pool, short)
    before = pool.idle_bytes
    assert run(pool, ids(shared, 1)) == 50
    assert pool.idle_bytes == before  # its tail was cut off, and nothing copied
    assert run(pool, ids(long, 1)) == 70


def test_a_cache_larger_than_the_budget_can_be_used_but_is_not_kept() -> None:
    pool = pool_of(1)
    assert run(pool, ids(range(100))) == 0
    assert pool.idle_bytes == 0
    assert run(pool, ids(range(30))) == 0
    assert pool.idle_bytes == BLOCK_BYTES


def test_growth_of_a_cache_in_use_evicts_idle_ones() -> None:
    pool = pool_of(3)
    run(pool, ids(range(1000, 1060)))
    run(pool, ids(range(2000, 2060)))
    cache = pool.take(ids(range(60)))
    assert pool.idle_bytes == 2 * BLOCK_BYTES
    pool.grow(cache)
    assert cache.capacity == 2 * BLOCK
    assert pool.idle_bytes == BLOCK_BYTES


def test_an_unused_cache_is_not_kept() -> None:
    pool = pool_of(3)
    pool.give_back(pool.take(ids(1, 2)))
    assert pool.idle_bytes == 0
