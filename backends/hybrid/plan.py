"""A model's segment calls at one length, with their arrays by what they mean.

Knows the description of the segments and the executor's arrays; computes nothing.

Axes: T tokens of the call, H query heads, K key/value heads, D head_dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backends.hybrid.executor import Array, Call, Executor
from backends.hybrid.meta import Meta, Role, Tensor


@dataclass(frozen=True)
class Step:
    """A call, what it gives, (T, H or K, D), and where the next one takes the attention, (T, H, D)."""

    call: Call
    q: Array
    k: Array
    v: Array
    attn: Array


@dataclass(frozen=True)
class Plan:
    """All calls at one length. `hidden` is what the first reads, `last_...` what the last reads.

    logits: (V,), of the first row.
    """

    hidden: Array
    steps: tuple[Step, ...]
    last: Call
    last_hidden: Array
    last_attn: Array
    logits: Array


def make_plan(meta: Meta, executor: Executor, length: int) -> Plan:
    """Bind all segments at a length the executor takes."""
    calls = executor.bind(length)
    both = list(zip(meta.segments, calls, strict=True))
    inputs = [_by_role(segment.inputs, call.inputs) for segment, call in both]
    outputs = [_by_role(segment.outputs, call.outputs) for segment, call in both]
    queries, keys = (length, meta.num_heads, meta.head_dim), (length, meta.num_kv_heads, meta.head_dim)
    steps = tuple(
        Step(
            call,
            given["q"].reshape(queries),
            given["k"].reshape(keys),
            given["v"].reshape(keys),
            taken["attn"].reshape(queries),
        )
        for call, given, taken in zip(calls[:-1], outputs[:-1], inputs[1:], strict=True)
    )
    return Plan(
        hidden=inputs[0]["hidden"],
        steps=steps,
        last=calls[-1],
        last_hidden=inputs[-1]["hidden"],
        last_attn=steps[-1].attn,
        logits=outputs[-1]["logits"][0],
    )


def _by_role(tensors: Sequence[Tensor], arrays: Sequence[Array]) -> dict[Role, Array]:
    return {tensor.role: array for tensor, array in zip(tensors, arrays, strict=True)}
