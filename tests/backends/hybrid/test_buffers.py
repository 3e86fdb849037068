"""Which memory segments share: the stream is where the next one takes it from, and never where it is read."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest

from backends.hybrid.buffers import Buffers
from backends.hybrid.meta import Role, Segment, Tensor


def tensor(role: Role, size: int = 6, rows: int | str = "T", layer: int | None = None) -> Tensor:
    return Tensor(name=f"{role}_{layer}", role=role, shape=[rows, size], layer=layer)  # type: ignore[list-item]


HIDDEN, ATTN, QKV = tensor("hidden"), tensor("attn"), [tensor("q"), tensor("k", 2), tensor("v", 2)]
STATES = [tensor("conv_state", rows=2, layer=layer) for layer in (1, 2)]
SEGMENTS = [
    Segment(inputs=[HIDDEN], outputs=QKV, builds=[]),  # gives no stream: it stays where it is
    Segment(inputs=[HIDDEN, ATTN], outputs=[HIDDEN, *QKV], builds=[]),
    Segment(
        inputs=[HIDDEN, ATTN, *STATES],
        outputs=[HIDDEN, *(tensor("bx", layer=layer) for layer in (1, 2)), *QKV],
        builds=[],
    ),
    Segment(inputs=[HIDDEN, ATTN], outputs=[HIDDEN, *QKV], builds=[]),
    Segment(inputs=[HIDDEN, ATTN], outputs=[tensor("logits", 9)], builds=[]),
]


@pytest.mark.parametrize("length", [1, 3, 8])
def test_no_segment_writes_what_it_reads_or_one_output_over_another(length: int) -> None:
    for inputs, outputs in Buffers(8).chain(SEGMENTS, length):
        assert not any(np.shares_memory(one, other) for one, other in combinations([*inputs, *outputs], 2))


@pytest.mark.parametrize("length", [1, 3, 8])
def test_the_stream_is_where_the_next_segment_takes_it_from(length: int) -> None:
    chained = list(Buffers(8).chain(SEGMENTS, length))
    for segment, (before, after) in zip(SEGMENTS, pairwise(chained), strict=False):
        inputs, outputs = before
        given = outputs[0] if segment.outputs[0].role == "hidden" else inputs[0]
        taken = after[0][0]
        assert given.shape == taken.shape == (length, 6)
        assert given.ctypes.data == taken.ctypes.data


def test_lengths_share_their_memory() -> None:
    buffers = Buffers(8)
    for one, other in zip(buffers.chain(SEGMENTS, 2), buffers.chain(SEGMENTS, 8), strict=True):
        for short, long in zip([*one[0], *one[1]], [*other[0], *other[1]], strict=True):
            assert short.ctypes.data == long.ctypes.data
