"""A forward pass: embedding, segments, attention between them, logits.

Knows one sequence at a time, by its KV cache. Knows nothing of prompts, sampling or text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from backends.hybrid.executor import Array, Call, Executor
from backends.hybrid.folder import HybridFolder
from backends.hybrid.kernels import NUMPY, Attend, Kernels, Rotate
from backends.hybrid.kv_cache import KVCache, TokenIds
from backends.hybrid.layout import CONV, attention_layers, conv_reaches
from backends.hybrid.meta import Meta
from backends.hybrid.plan import Conv, Plan, make_plan
from backends.hybrid.rows import RowShape
from backends.hybrid.weights import open_embedding, read_norm


@dataclass(frozen=True)
class _Layer:
    """What the engine does between two segments, for the layer `index` of the model."""

    index: int
    attention: Attend
    rotary: Rotate | None
    q_norm: Array | None
    k_norm: Array | None


class Forward:
    """Runs tokens through a model. One thread; memory for calls is used again."""

    def __init__(
        self,
        folder: HybridFolder,
        executor: Executor,
        *,
        kv_fp16: bool = False,
        kernels: Kernels = NUMPY,
    ) -> None:
        """Open the embedding and the norm weights. Raises BackendError(model_corrupt).

        kv_fp16: keep keys and values in half the memory; they are computed with in float32 all the same.
        """
        self._meta = folder.meta
        self._shapes = _row_shapes(folder.meta, kv_fp16)
        self._executor = executor
        self._kernels = kernels
        self._embedding = open_embedding(folder)
        self._embedding_scale = np.float32(folder.meta.embedding.scale)
        self._layers = _layers(folder, kernels)
        self._single = make_plan(self._meta, executor, 1)
        self._longest = make_plan(self._meta, executor, executor.max_tokens)

    @property
    def max_tokens(self) -> int:
        """How many tokens `run` takes at once: the size of a prefill chunk."""
        return self._executor.max_tokens

    def new_cache(self) -> KVCache:
        """Return an empty cache for this model."""
        return KVCache(self._shapes, self.max_tokens, self._kernels.write_rows)

    def run(
        self, token_ids: TokenIds, cache: KVCache, want_logits: bool, *, every_row: bool = False
    ) -> Array | None:
        """Run tokens that follow those in the cache, at most max_tokens, and add them to it.

        Returns the logits after the last token, (V,), valid until the next call, if they are wanted; the
        output layer is not run for any other token. every_row: run the last segment for all tokens too, for
        those who watch the executor. An exception leaves the cache's tokens as they were.
        """
        tokens = len(token_ids)
        plan = self._plan_for(tokens)
        position = cache.length
        np.multiply(self._embedding[token_ids], self._embedding_scale, out=plan.hidden[:tokens])
        final = len(self._layers) - 1
        # After the last attention no row needs another, unless a conv layer comes: only the last one goes on.
        whole = every_row or bool(plan.last_convs)
        for index, (layer, step) in enumerate(zip(self._layers, plan.steps, strict=True)):
            if step.convs:
                _run_with_convs(step.call, step.convs, cache, tokens)
            else:
                step.call.run()
            q, k = step.q[:tokens], step.k[:tokens]
            if layer.q_norm is not None:
                self._kernels.rms_norm(q, layer.q_norm, self._meta.norm_eps)
            if layer.k_norm is not None:
                self._kernels.rms_norm(k, layer.k_norm, self._meta.norm_eps)
            if layer.rotary is not None:
                layer.rotary.rotate(q, position)
                layer.rotary.rotate(k, position)
            keys, values = cache.append(layer.index, k, step.v[:tokens])
            if index < final or whole:
                attn, first = step.attn[:tokens], 0
            elif want_logits:
                attn, first = self._single.last_attn, tokens - 1
            else:
                break
            layer.attention.attend(q[first:], keys, values, attn)
            if step.gate is not None:
                self._kernels.apply_gate(attn, step.gate[first:tokens])
        if every_row and not plan.last_convs:
            plan.last.run()
        logits = self._finish(plan, cache, tokens, want_logits)
        cache.commit(token_ids)
        return logits

    def _finish(self, plan: Plan, cache: KVCache, tokens: int, want_logits: bool) -> Array | None:
        """Run the last segment as far as it is needed; return the logits if they are wanted."""
        if plan.last_convs:
            _run_with_convs(plan.last, plan.last_convs, cache, tokens)
        if not want_logits:
            return None
        if plan.last_convs and tokens == plan.length:
            return self._scaled(plan.logits)
        single = self._single
        single.last_hidden[0] = plan.last_hidden[tokens - 1]
        if plan.last_convs:
            single.last_attn[0] = plan.last_attn[tokens - 1]
        for conv in single.last_convs:
            cache.read_inputs(conv.layer, cache.length + tokens - 1, conv.state)
        single.last.run()
        return self._scaled(single.logits)

    def _scaled(self, logits: Array) -> Array:
        if self._meta.logits_scale != 1:
            logits *= np.float32(self._meta.logits_scale)
        if self._meta.logits_softcap is not None:
            cap = np.float32(self._meta.logits_softcap)
            np.tanh(logits / cap, out=logits)
            logits *= cap
        return logits

    def _plan_for(self, tokens: int) -> Plan:
        length = self._executor.length_for(tokens)
        if length == 1:
            return self._single
        if length == self._executor.max_tokens:
            return self._longest
        return make_plan(self._meta, self._executor, length)


def _run_with_convs(call: Call, convs: Sequence[Conv], cache: KVCache, tokens: int) -> None:
    """Run a call that has conv layers: give it what was before, and keep the inputs of the valid rows."""
    for conv in convs:
        cache.read_inputs(conv.layer, cache.length, conv.state)
    call.run()
    for conv in convs:
        cache.append_inputs(conv.layer, conv.inputs[:tokens])


def _row_shapes(meta: Meta, kv_fp16: bool) -> list[RowShape]:
    """Return what each layer of a model remembers of a token, and of how many."""
    reaches = conv_reaches(meta)
    shapes = []
    for index, layer in enumerate(meta.layers):
        if layer.type == CONV:
            shapes.append(RowShape(1, meta.hidden_size, arrays=1, reach=reaches[index]))
        else:
            window = meta.attention[layer.type].window
            reach = None if window is None else window - 1
            shapes.append(RowShape(meta.num_kv_heads, meta.head_dim, reach=reach, fp16=kv_fp16))
    return shapes


def _layers(folder: HybridFolder, kernels: Kernels) -> tuple[_Layer, ...]:
    """Return the attention layers, in order; those of one type share tables and room for scores."""
    meta = folder.meta
    attentions = {
        name: kernels.attention(kind.scale, kind.window, kind.softcap, meta.head_dim)
        for name, kind in meta.attention.items()
    }
    tables = {
        name: kernels.rotary(kind.rope, meta.head_dim) if kind.rope else None
        for name, kind in meta.attention.items()
    }
    return tuple(
        _Layer(
            index,
            attentions[meta.layers[index].type],
            tables[meta.layers[index].type],
            read_norm(folder, meta.layers[index].q_norm),
            read_norm(folder, meta.layers[index].k_norm),
        )
        for index in attention_layers(meta)
    )
