"""Several KV caches within a budget: a run gets the one that already holds most of its prompt.

Knows tokens and bytes, nothing of models. One run at a time uses a cache; the others are idle. Nobody's
prompt meets the cache of another: how much of it was cached would tell, token by token, what the other wrote.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from backends.hybrid.kv_cache import KVCache, TokenIds

CHEAP_TAIL = 16  # tokens that are rather computed again than kept at the price of a copy


class CachePool:
    """Idle caches, least recently used first, and the choice among them. Not thread-safe.

    new: makes an empty cache. limit_bytes: for all caches together. A cache in use may go over it, so that
    any prompt the context allows can run; it is not kept afterwards.
    """

    def __init__(self, new: Callable[[], KVCache], limit_bytes: int) -> None:
        self._new = new
        self._limit_bytes = limit_bytes
        self._idle: list[KVCache] = []

    @property
    def idle_bytes(self) -> int:
        """Memory of the caches that no run uses."""
        return sum(cache.size_bytes for cache in self._idle)

    def take(self, token_ids: TokenIds, owner: str = "") -> KVCache:
        """Return a cache that holds the longest prefix of a prompt its owner has sent, and nothing else.

        At least the prompt's last token is not in it, since that one has to be run for its logits. There is
        room for the whole prompt. It belongs to the caller until `give_back`. Of a cache that goes on
        differently the shared part is copied, so that both sequences can be continued; but a short tail is
        cut off instead, and so is any tail if the copy would not fit. Where a model's layers do not keep
        all, the prefix is what a snapshot or the rows that are left cover in every layer.
        """
        cache, shared = self._best(token_ids, owner)
        if cache is None:
            cache = self._new()
        elif self._worth_a_copy(cache, shared, len(token_ids)):
            self._evict(keep=cache, needed_bytes=cache.fork_bytes(len(token_ids)))
            cache = cache.fork(shared, room=len(token_ids))
        else:
            self._idle.remove(cache)
            cache.truncate(shared)
        cache.owner = owner
        self.reserve(cache, len(token_ids))
        return cache

    def reserve(self, cache: KVCache, length: int) -> None:
        """Make room for `length` tokens in a cache in use, at the cost of idle ones."""
        self._evict(keep=None, needed_bytes=cache.bytes_for(length))
        cache.reserve(length)

    def grow(self, cache: KVCache) -> None:
        """Make more room in a cache in use that is full."""
        self.reserve(cache, cache.next_capacity)

    def remember(self, cache: KVCache) -> None:
        """Take a snapshot of a cache in use, if its model needs them and the budget has room for it.

        The oldest snapshots go for it, idle caches too, but it never takes more than half of the budget: the
        rows themselves are worth more.
        """
        needed = cache.next_snapshot_bytes
        if not needed:
            return
        while cache.size_bytes + needed > self._limit_bytes or needed > self._limit_bytes // 2:
            if not cache.drop_snapshot():
                return
        self._evict(keep=None, needed_bytes=cache.size_bytes + needed)
        cache.snapshot()

    def give_back(self, cache: KVCache) -> None:
        """Keep a cache after its run, as the most recently used, if the budget allows.

        Idle caches that hold nothing it does not hold go: else the same request, sent again and again, would
        fill the budget with copies and push other conversations out.
        """
        if cache.length:
            self._idle = [
                idle
                for idle in self._idle
                if idle.owner != cache.owner or not _begins_with(cache.token_ids, idle.token_ids)
            ]
            self._idle.append(cache)
        self._evict(keep=None, needed_bytes=0)

    def _best(self, token_ids: TokenIds, owner: str) -> tuple[KVCache | None, int]:
        """Return the cache with the longest prefix to go on from, of equals that with the shortest tail."""
        best, best_shared = None, 0
        for cache in self._idle:
            if cache.owner != owner:
                continue
            shared = cache.resumable(common_prefix(cache.token_ids, token_ids[:-1]))
            if shared > best_shared or (best and shared == best_shared and cache.length < best.length):
                best, best_shared = cache, shared
        return best, best_shared

    def _worth_a_copy(self, cache: KVCache, shared: int, length: int) -> bool:
        if cache.length - shared <= CHEAP_TAIL:
            return False
        return cache.size_bytes + cache.fork_bytes(length) <= self._limit_bytes

    def _evict(self, *, keep: KVCache | None, needed_bytes: int) -> None:
        """Drop least recently used caches until `needed_bytes` more would fit, never the one to keep."""
        free = self._limit_bytes - needed_bytes - self.idle_bytes
        for cache in list(self._idle):
            if free >= 0:
                return
            if cache is not keep:
                self._idle.remove(cache)
                free += cache.size_bytes


def _begins_with(token_ids: TokenIds, prefix: TokenIds) -> bool:
    return common_prefix(token_ids, prefix) == len(prefix)


def common_prefix(a: TokenIds, b: TokenIds) -> int:
    """Return how many tokens two sequences share from their start."""
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length
