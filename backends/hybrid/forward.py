"""A forward pass: embedding, segments, attention between them, logits.

Knows one sequence at a time, by its KV cache. Knows nothing of prompts, sampling or text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from backends.hybrid.attention import Attention
from backends.hybrid.executor import Array, Executor
from backends.hybrid.folder import HybridFolder
from backends.hybrid.kv_cache import KVCache, TokenIds
from backends.hybrid.layout import attention_layers
from backends.hybrid.plan import Plan, make_plan
from backends.hybrid.rope import RotaryTable
from backends.hybrid.weights import open_embedding, read_norm


@dataclass(frozen=True)
class _Layer:
    """What the engine does between two segments: norms of q and k, rotation, attention."""

    attention: Attention
    rotary: RotaryTable | None
    q_norm: Array | None
    k_norm: Array | None


class Forward:
    """Runs tokens through a model. One thread; memory for calls is used again."""

    def __init__(self, folder: HybridFolder, executor: Executor) -> None:
        """Open the embedding and the norm weights. Raises BackendError(model_corrupt)."""
        self._meta = folder.meta
        self._executor = executor
        self._eps = np.float32(folder.meta.norm_eps)
        self._embedding = open_embedding(folder)
        self._embedding_scale = np.float32(folder.meta.embedding.scale)
        self._layers = _layers(folder)
        self._single = make_plan(self._meta, executor, 1)
        self._longest = make_plan(self._meta, executor, executor.max_tokens)

    @property
    def max_tokens(self) -> int:
        """How many tokens `run` takes at once: the size of a prefill chunk."""
        return self._executor.max_tokens

    def new_cache(self) -> KVCache:
        """Return an empty cache for this model."""
        return KVCache(len(self._layers), self._meta.num_kv_heads, self._meta.head_dim)

    def run(self, token_ids: TokenIds, cache: KVCache, want_logits: bool) -> Array | None:
        """Run tokens that follow those in the cache, at most max_tokens, and add them to it.

        Returns the logits after the last token, (V,), valid until the next call, if they are wanted; the
        output layer is not run for any other token. An exception leaves the cache's tokens as they were.
        """
        tokens = len(token_ids)
        plan = self._plan_for(tokens)
        position = cache.length
        np.multiply(self._embedding[token_ids], self._embedding_scale, out=plan.hidden[:tokens])
        final = len(self._layers) - 1
        for index, (layer, step) in enumerate(zip(self._layers, plan.steps, strict=True)):
            step.call.run()
            q, k = step.q[:tokens], step.k[:tokens]
            if layer.q_norm is not None:
                self._norm(q, layer.q_norm)
            if layer.k_norm is not None:
                self._norm(k, layer.k_norm)
            if layer.rotary is not None:
                layer.rotary.rotate(q, position)
                layer.rotary.rotate(k, position)
            keys, values = cache.append(index, k, step.v[:tokens])
            if index < final:
                layer.attention.attend(q, keys, values, step.attn[:tokens])
            elif want_logits:
                # After the last attention no row needs another: only the last one goes on.
                layer.attention.attend(q[-1:], keys, values, self._single.last_attn)
        if want_logits:
            self._single.last_hidden[0] = plan.last_hidden[tokens - 1]
            self._single.last.run()
        cache.commit(token_ids)
        return self._logits() if want_logits else None

    def _logits(self) -> Array:
        logits = self._single.logits
        if self._meta.logits_scale != 1:
            logits *= np.float32(self._meta.logits_scale)
        if self._meta.logits_softcap is not None:
            cap = np.float32(self._meta.logits_softcap)
            np.tanh(logits / cap, out=logits)
            logits *= cap
        return logits

    def _norm(self, x: Array, weight: Array) -> None:
        """RMS norm over the last axis, in place."""
        x /= np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self._eps)
        x *= weight

    def _plan_for(self, tokens: int) -> Plan:
        length = self._executor.length_for(tokens)
        if length == 1:
            return self._single
        if length == self._executor.max_tokens:
            return self._longest
        return make_plan(self._meta, self._executor, length)


def _layers(folder: HybridFolder) -> tuple[_Layer, ...]:
    """Return the attention layers, in order; those of one type share tables and room for scores."""
    meta = folder.meta
    attentions = {
        name: Attention(kind.scale, kind.window, kind.softcap) for name, kind in meta.attention.items()
    }
    tables = {
        name: RotaryTable(kind.rope, meta.head_dim) if kind.rope else None
        for name, kind in meta.attention.items()
    }
    return tuple(
        _Layer(
            attentions[layer.type],
            tables[layer.type],
            read_norm(folder, layer.q_norm),
            read_norm(folder, layer.k_norm),
        )
        for layer in (meta.layers[index] for index in attention_layers(meta))
    )
