"""A model's segment calls at one length, with their arrays by what they mean.

Knows the description of the segments and the executor's arrays; computes nothing.

Axes: T tokens of the call, H query heads, K key/value heads, D head_dim, E hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backends.hybrid.executor import Array, Call, Executor
from backends.hybrid.meta import Meta, Role, Segment, Tensor


@dataclass(frozen=True)
class Conv:
    """A conv layer in a call: the inputs before this call's, (S, E), and this call's, (T, E)."""

    layer: int
    state: Array
    inputs: Array


@dataclass(frozen=True)
class Step:
    """A call, what it gives, (T, H or K, D), and where the next one takes the attention, (T, H, D).

    gate: (T, H) or (T, H * D), None where the layer has none.
    """

    call: Call
    convs: tuple[Conv, ...]
    q: Array
    k: Array
    v: Array
    gate: Array | None
    attn: Array


@dataclass(frozen=True)
class Plan:
    """All calls at one length. `hidden` is what the first reads, `last_...` what the last reads.

    logits: (V,), of the call's first row; where the last call has conv layers, of its last row.
    """

    length: int
    hidden: Array
    steps: tuple[Step, ...]
    last: Call
    last_convs: tuple[Conv, ...]
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
            _convs(segment, call),
            given["q"].reshape(queries),
            given["k"].reshape(keys),
            given["v"].reshape(keys),
            given.get("gate"),
            taken["attn"].reshape(queries),
        )
        for (segment, call), given, taken in zip(both[:-1], outputs[:-1], inputs[1:], strict=True)
    )
    return Plan(
        length=length,
        hidden=inputs[0]["hidden"],
        steps=steps,
        last=calls[-1],
        last_convs=_convs(*both[-1]),
        last_hidden=inputs[-1]["hidden"],
        last_attn=steps[-1].attn,
        logits=outputs[-1]["logits"][0],
    )


def _convs(segment: Segment, call: Call) -> tuple[Conv, ...]:
    """Return the conv layers of a call, in the order in which it computes them."""
    states = _by_layer("conv_state", segment.inputs, call.inputs)
    inputs = _by_layer("bx", segment.outputs, call.outputs)
    return tuple(Conv(layer, states[layer], inputs[layer]) for layer in sorted(states))


def _by_layer(role: Role, tensors: Sequence[Tensor], arrays: Sequence[Array]) -> dict[int, Array]:
    both = zip(tensors, arrays, strict=True)
    return {tensor.layer: array for tensor, array in both if tensor.role == role and tensor.layer is not None}


def _by_role(tensors: Sequence[Tensor], arrays: Sequence[Array]) -> dict[Role, Array]:
    return {tensor.role: array for tensor, array in zip(tensors, arrays, strict=True)}
