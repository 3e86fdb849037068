"""What a model is made of, in the terms that all supported architectures share.

An architecture says which of its weights plays which part; the writer makes the folder from that. Weights are
meant by the names they have in a Hugging Face checkpoint. Holds no weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from backends.hybrid.meta import Attention

CONV = "conv"
MOST_LAYERS = 512  # that llama.cpp takes (LLAMA_MAX_LAYERS): a damaged number must not fill the memory
Shape = tuple[int, ...]


@dataclass(frozen=True)
class AttentionParts:
    """An attention layer's operator. type: its name in Model.attention. Norms are of each head."""

    type: str
    q: str
    k: str
    v: str
    o: str
    gate: str | None = None
    q_norm: str | None = None
    k_norm: str | None = None


@dataclass(frozen=True)
class ConvParts:
    """A gated short convolution: in_proj gives B, C and x; C times the conv of B x goes through out_proj.

    kernel: its weight, (hidden_size, 1, taps).
    """

    in_proj: str
    kernel: str
    out_proj: str
    taps: int


@dataclass(frozen=True)
class LayerParts:
    """One layer: stream += post_norm(operator(norm(stream))), then the same with the feed-forward part."""

    operator: AttentionParts | ConvParts
    norm: str
    ffn_norm: str
    gate: str
    up: str
    down: str
    post_norm: str | None = None
    post_ffn_norm: str | None = None


@dataclass(frozen=True)
class Model:
    """A model's dimensions, named as in a Hugging Face config, and its parts.

    lm_head None: the embedding table is it. norm_offset: added to every norm weight (Gemma's are stored less
    1). residual_multiplier: factor of what a layer adds to the stream (Granite). ffn: the activation.
    """

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    attention: Mapping[str, Attention]
    layers: Sequence[LayerParts]
    embedding: str
    final_norm: str
    lm_head: str | None
    ffn: Literal["silu", "gelu_tanh"] = "silu"
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    residual_multiplier: float = 1.0
    logits_scale: float = 1.0
    logits_softcap: float | None = None

    def shapes(self) -> dict[str, Shape]:
        """Return the name and shape of every weight."""
        hidden, ffn = self.hidden_size, self.intermediate_size
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        shapes: dict[str, Shape] = {self.embedding: (self.vocab_size, hidden), self.final_norm: (hidden,)}
        if self.lm_head is not None:
            shapes[self.lm_head] = (self.vocab_size, hidden)
        for layer in self.layers:
            for norm in (layer.norm, layer.ffn_norm, layer.post_norm, layer.post_ffn_norm):
                if norm is not None:
                    shapes[norm] = (hidden,)
            shapes |= {layer.gate: (ffn, hidden), layer.up: (ffn, hidden), layer.down: (hidden, ffn)}
            part = layer.operator
            if isinstance(part, ConvParts):
                shapes[part.in_proj], shapes[part.out_proj] = (3 * hidden, hidden), (hidden, hidden)
                shapes[part.kernel] = (hidden, 1, part.taps)
                continue
            shapes |= {part.q: (queries, hidden), part.k: (keys, hidden), part.v: (keys, hidden)}
            shapes[part.o] = (hidden, queries)
            shapes |= {norm: (self.head_dim,) for norm in (part.q_norm, part.k_norm) if norm is not None}
            if part.gate is not None:
                per_head = self.attention[part.type].gate == "head"
                shapes[part.gate] = (self.num_heads if per_head else queries, hidden)
        return shapes

    @property
    def size_bytes(self) -> int:
        """Bytes of the float32 weights on disk."""
        return 4 * sum(math.prod(shape) for shape in self.shapes().values())


@dataclass(frozen=True)
class Cut:
    """What one segment computes: the end of an attention layer, conv layers, the projections of the next.

    ends None: it is the first. begins None: it is the last and ends in the logits.
    """

    ends: int | None
    convs: tuple[int, ...]
    begins: int | None


def cuts(layers: Sequence[LayerParts]) -> list[Cut]:
    """Return the segments of a model: cut at each attention, so that conv layers cost no call."""
    attention = [index for index, layer in enumerate(layers) if isinstance(layer.operator, AttentionParts)]
    borders: list[int | None] = [None, *attention, None]
    found = []
    for ends, begins in pairwise(borders):
        start = 0 if ends is None else ends + 1
        found.append(Cut(ends, tuple(range(start, len(layers) if begins is None else begins)), begins))
    return found
