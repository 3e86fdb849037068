"""The keys and values of one token sequence, on the CPU, in memory that grows as it is used.

Knows nothing of what the tokens mean and nothing of other caches.

Axes: K key/value heads, S positions, D head_dim.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
TokenIds = npt.NDArray[np.int32]

BLOCK = 64  # positions memory is taken in


class KVCache:
    """Keys and values of every attention layer for the first `length` tokens of a sequence.

    A run writes the rows of new tokens layer by layer (`append`) and then says that they are there
    (`commit`). What was written and not committed does not count, so a run that fails in between leaves the
    cache as it was. `owner` says whose tokens they are. Not thread-safe.
    """

    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int) -> None:
        self.owner = ""
        self._shape = (num_kv_heads, 0, head_dim)
        self._keys = [np.empty(self._shape, np.float32) for _ in range(num_layers)]
        self._values = [np.empty(self._shape, np.float32) for _ in range(num_layers)]
        self._capacity = 0
        self._token_ids: TokenIds = np.empty(0, np.int32)
        self._length = 0

    @property
    def length(self) -> int:
        """How many tokens are committed."""
        return self._length

    @property
    def token_ids(self) -> TokenIds:
        """The committed tokens: a view, valid until the cache is next written."""
        return self._token_ids[: self._length]

    @property
    def capacity(self) -> int:
        """For how many tokens there is room; `append` makes more where it is needed."""
        return self._capacity

    @property
    def size_bytes(self) -> int:
        """Memory taken for keys and values."""
        return self._capacity * self.bytes_per_token

    @property
    def bytes_per_token(self) -> int:
        """What one position costs over all layers."""
        heads, _, head_dim = self._shape
        return 2 * 4 * len(self._keys) * heads * head_dim

    @property
    def next_capacity(self) -> int:
        """The room to take when it is used up: a quarter more, so that long answers are not copied often."""
        return self._capacity + max(BLOCK, self._capacity // 4)

    def bytes_for(self, length: int) -> int:
        """Return what `size_bytes` will be after `reserve(length)`."""
        return max(self._capacity, _in_blocks(length)) * self.bytes_per_token

    def fork_bytes(self, room: int) -> int:
        """Return what `size_bytes` of a fork with this room will be."""
        return _in_blocks(room) * self.bytes_per_token

    def reserve(self, length: int) -> None:
        """Make room for `length` tokens in all, so that appends up to there need no more memory."""
        if length > self._capacity:
            self._resize(_in_blocks(length))

    def append(self, layer: int, keys: Array, values: Array) -> tuple[Array, Array]:
        """Write rows (T, K, D) after the committed tokens; return all keys and values, (K, length + T, D).

        What is returned are views of the cache, valid until it is next written.
        """
        start, end = self._length, self._length + len(keys)
        if end > self._capacity:
            self.reserve(max(end, self.next_capacity))
        all_keys, all_values = self._keys[layer], self._values[layer]
        all_keys[:, start:end] = keys.transpose(1, 0, 2)
        all_values[:, start:end] = values.transpose(1, 0, 2)
        return all_keys[:, :end], all_values[:, :end]

    def commit(self, token_ids: TokenIds) -> None:
        """Count these tokens, whose rows every layer has appended, as part of the sequence."""
        end = self._length + len(token_ids)
        self._token_ids[self._length : end] = token_ids
        self._length = end

    def truncate(self, length: int) -> None:
        """Forget all tokens after the first `length`. Memory is kept: more tokens mostly follow."""
        self._length = min(self._length, length)

    def fork(self, length: int, room: int = 0) -> KVCache:
        """Return a cache of its own memory that holds the first `length` tokens of this one.

        room: for how many tokens in all, at least `length`, memory is taken at once.
        """
        heads, _, head_dim = self._shape
        copy = KVCache(len(self._keys), heads, head_dim)
        length = min(length, self._length)
        copy.reserve(max(length, room))
        for mine, theirs in zip(self._keys + self._values, copy._keys + copy._values, strict=True):
            theirs[:, :length] = mine[:, :length]
        copy.commit(self._token_ids[:length])
        return copy

    def _resize(self, capacity: int) -> None:
        """Move to larger memory, one layer at a time so that little is held twice."""
        heads, _, head_dim = self._shape
        for arrays in (self._keys, self._values):
            for layer, old in enumerate(arrays):
                new = np.empty((heads, capacity, head_dim), np.float32)
                new[:, : self._length] = old[:, : self._length]
                arrays[layer] = new
        self._token_ids = np.concatenate([self.token_ids, np.zeros(capacity - self._length, np.int32)])
        self._capacity = capacity


def _in_blocks(length: int) -> int:
    return -(-length // BLOCK) * BLOCK
