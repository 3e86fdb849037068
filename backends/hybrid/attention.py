"""Causal attention with grouped queries on the CPU, in float32.

Knows arrays, nothing of layers, caches or positions beyond "the queries are the last T of the S keys".
float32 because the NPU's softmax is off by 1e-2, which turns right answers wrong.

Axes: T queries, S keys, H query heads, K key/value heads, G = H / K queries a key head, D head_dim.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Rows = npt.NDArray[np.floating]

SCORES_BYTES = 2 * 1024 * 1024  # of one block of scores: about what stays in a core's cache


class Attention:
    """One type of attention, with room for its scores that is used again. Not thread-safe.

    scale: factor of q . k. window: a query sees so many of the latest keys, its own included; None: all.
    softcap: c in c * tanh(score / c), None for none.
    """

    def __init__(self, scale: float, window: int | None = None, softcap: float | None = None) -> None:
        self._scale = np.float32(scale)
        self._window = window
        self._softcap = None if softcap is None else np.float32(softcap)
        self._scores: Array = np.empty(0, np.float32)

    def attend(self, q: Array, keys: Rows, values: Rows, out: Array) -> None:
        """Write the attention of q, (T, H, D), over keys and values, (K, S, D), into out, (T, H, D).

        Keys and values may be float16; those that are seen are taken to float32 before anything else.
        The queries stand at the last T of the S positions. `q` is scaled in place; `out` may not overlap it.
        Memory for scores is bounded by SCORES_BYTES or one row, whichever is more.
        """
        tokens, heads, head_dim = q.shape
        kv_heads, length = keys.shape[:2]
        queries = heads // kv_heads
        q *= self._scale
        if keys.dtype != np.float32:
            first = 0 if self._window is None else max(0, length - self._window - tokens + 1)
            keys, values = keys[:, first:].astype(np.float32), values[:, first:].astype(np.float32)
            length -= first
        if tokens == 1:
            self._block(q.reshape(kv_heads, queries, head_dim), keys, values, 1, out)
            return
        seen = length if self._window is None else min(length, self._window + tokens)
        rows = max(1, SCORES_BYTES // (4 * queries * seen))
        grouped = q.reshape(tokens, kv_heads, queries, head_dim).transpose(1, 2, 0, 3)
        mixed = out.reshape(tokens, kv_heads, queries, head_dim)
        for head in range(kv_heads):
            for start in range(0, tokens, rows):
                stop = min(start + rows, tokens)
                until = length - tokens + stop
                block = np.ascontiguousarray(grouped[head, :, start:stop]).reshape(1, -1, head_dim)
                self._block(
                    block,
                    keys[head : head + 1, :until],
                    values[head : head + 1, :until],
                    stop - start,
                    mixed[start:stop, head : head + 1],
                )

    def _block(self, q: Array, keys: Array, values: Array, rows: int, out: Array) -> None:
        """The same for q, (K, G * rows, D), whose rows are the last ones of the keys, with the scale applied.

        out: (rows, K, G, D), or for one row anything of that size.
        """
        kv_heads, queries, head_dim = q.shape
        length = keys.shape[1]
        if self._window is not None and length > self._window + rows - 1:
            first = length - self._window - rows + 1
            keys, values, length = keys[:, first:], values[:, first:], length - first
        scores = self._room(kv_heads * queries * length).reshape(kv_heads, queries, length)
        if rows == 1:
            # Matrix times vector, query by query: as one product BLAS would copy all keys for a few queries.
            np.matmul(keys[:, None], q[..., None], out=scores[..., None])
        else:
            np.matmul(q, keys.transpose(0, 2, 1), out=scores)
        if self._softcap is not None:
            scores /= self._softcap
            np.tanh(scores, out=scores)
            scores *= self._softcap
        if rows > 1:
            self._mask(scores.reshape(kv_heads, queries // rows, rows, length))
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        sums = scores.sum(axis=-1, keepdims=True)
        mixed = np.matmul(scores, values)
        mixed /= sums
        if rows == 1:
            out.reshape(kv_heads, queries, head_dim)[...] = mixed
        else:
            out[...] = mixed.reshape(kv_heads, -1, rows, head_dim).transpose(2, 0, 1, 3)

    def _mask(self, scores: Array) -> None:
        """Hide keys after each query, and those that have left its window; scores: (K, G, rows, S)."""
        rows, length = scores.shape[2:]
        later = np.triu(np.full((rows, rows), -np.inf, np.float32), 1)
        scores[..., length - rows :] += later
        if self._window is None:
            return
        # Query i stands at key length - rows + i and sees the keys from that minus window, exclusive.
        first_seen = np.arange(length - rows, length) - self._window + 1
        gone = max(0, int(first_seen[-1]))
        if gone:
            hidden = np.arange(gone) < first_seen[:, None]
            scores[..., :gone][..., hidden] = -np.inf

    def _room(self, size: int) -> Array:
        if len(self._scores) < size:
            self._scores = np.empty(size + size // 4, np.float32)
        return self._scores[:size]
