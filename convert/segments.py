"""Writes segments: which operators stand in a model's graphs, in which order, with which weights.

The graphs hold matrix products, norms, feed-forward parts and short convolutions; RoPE, softmax, the gate on
the attention and the KV cache are the engine's and are in no graph. Weights are asked for one at a time.

Residual scale: the stream in the graphs is the model's divided by a constant c, so that it stays within
float16. What is added to it is divided by c and the epsilon of its norms by c^2, after which every norm gives
what it gave before. With a power of two for c no bit of a weight is lost.

Axes: T tokens in the call, D hidden size, Q num_heads * head_dim, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from backends.hybrid.meta import Build, Role, Segment, Tensor
from convert.graphs import Array, Graph, StoredMatrix
from convert.model import AttentionParts, ConvParts, Cut, LayerParts, Model

Weights = Callable[[str], Array]


class SegmentWriter:
    """Writes the segments of one model into a folder."""

    def __init__(
        self,
        directory: Path,
        model: Model,
        weights: Weights,
        table: StoredMatrix,
        residual_scale: float = 1.0,
    ) -> None:
        """weights: gives a weight by name, checked. table: the embedding, for a tied lm_head."""
        self._directory = directory
        self._model = model
        self._weights = weights
        self._table = table
        self._added = model.residual_multiplier / residual_scale
        self._stream_eps = model.norm_eps / residual_scale**2

    def write(self, name: str, cut: Cut) -> Segment:
        """Write one segment as NAME.onnx and NAME.data (the matrices) and return its description.

        Raises OSError, and what `weights` raises.
        """
        model, layers = self._model, self._model.layers
        stream_shape: list[int | str] = ["T", model.hidden_size]
        inputs = [_tensor("hidden", "hidden", stream_shape)]
        outputs: list[Tensor] = []
        graph = Graph(self._directory / f"{name}.data")
        with graph:
            hidden = "hidden"
            if cut.ends is not None:
                inputs.append(_tensor("attn", "attn", ["T", model.num_heads * model.head_dim], cut.ends))
                hidden = self._end_of_attention(graph, layers[cut.ends], hidden)
            for index in cut.convs:
                layer = layers[index]
                assert isinstance(layer.operator, ConvParts)
                state = f"conv_state_{index}"
                inputs.append(
                    _tensor(state, "conv_state", [layer.operator.taps - 1, model.hidden_size], index)
                )
                outputs.append(_tensor(f"bx_{index}", "bx", stream_shape, index))
                hidden = self._conv_layer(graph, index, layer, hidden, state)
            if cut.begins is None:
                outputs.append(self._head(graph, hidden, last_row=bool(cut.convs)))
            else:
                if hidden != "hidden":
                    outputs.insert(0, _tensor(hidden, "hidden", stream_shape))
                outputs += self._projections(graph, layers[cut.begins], cut.begins, hidden)
        built = graph.model(name, inputs, outputs).SerializeToString(deterministic=True)
        (self._directory / f"{name}.onnx").write_bytes(built)
        build = Build(
            executor="onnx",
            variant="fp32",
            file=f"{name}.onnx",
            sha256=hashlib.sha256(built).hexdigest(),
            size_bytes=len(built),
            data_file=graph.data.name if graph.data.size_bytes else None,
            data_sha256=graph.data.sha256 if graph.data.size_bytes else None,
            data_size_bytes=graph.data.size_bytes or None,
        )
        return Segment(inputs=inputs, outputs=outputs, builds=[build])

    def _end_of_attention(self, graph: Graph, layer: LayerParts, hidden: str) -> str:
        assert isinstance(layer.operator, AttentionParts)
        out = self._onto_stream(graph, "o", "attn", layer.operator.o, layer.post_norm)
        middle = graph.node("Add", "hidden_mid", hidden, out)
        return self._feed_forward(graph, "", layer, middle)

    def _conv_layer(self, graph: Graph, index: int, layer: LayerParts, hidden: str, state: str) -> str:
        """One whole conv layer. B, C and x are products of their own: a split of one would be a copy more."""
        part, prefix = layer.operator, f"conv{index}_"
        assert isinstance(part, ConvParts)
        normed = graph.norm(f"{prefix}norm", hidden, self._norm(layer.norm), self._stream_eps)
        size = self._model.hidden_size
        whole = self._weights(part.in_proj)
        b, c, x = (
            graph.matmul(f"{prefix}{name}", normed, whole[start * size : (start + 1) * size])
            for start, name in enumerate("bcx")
        )
        del whole
        bx = graph.node("Mul", f"bx_{index}", b, x)
        kernel = self._weights(part.kernel)[:, 0]
        mixed = graph.causal_conv(f"{prefix}taps", state, bx, kernel)
        gated = graph.node("Mul", f"{prefix}gated", c, mixed)
        out = self._onto_stream(graph, f"{prefix}out", gated, part.out_proj, layer.post_norm)
        middle = graph.node("Add", f"{prefix}hidden_mid", hidden, out)
        return self._feed_forward(graph, prefix, layer, middle)

    def _feed_forward(self, graph: Graph, prefix: str, layer: LayerParts, middle: str) -> str:
        normed = graph.norm(f"{prefix}ffn_norm", middle, self._norm(layer.ffn_norm), self._stream_eps)
        gate = graph.matmul(f"{prefix}gate", normed, self._weights(layer.gate))
        activation = graph.silu if self._model.ffn == "silu" else graph.gelu_tanh
        active = activation(f"{prefix}gate", gate)
        up = graph.matmul(f"{prefix}up", normed, self._weights(layer.up))
        product = graph.node("Mul", f"{prefix}ffn", active, up)
        down = self._onto_stream(graph, f"{prefix}down", product, layer.down, layer.post_ffn_norm)
        return graph.node("Add", f"{prefix}hidden_out", middle, down)

    def _onto_stream(self, graph: Graph, name: str, value: str, matrix: str, norm: str | None) -> str:
        """What is added to the stream: a product, with a norm after it where the model has one."""
        weight = self._weights(matrix)
        if norm is None:
            if self._added != 1:
                weight = weight * np.float32(self._added)
            return graph.matmul(name, value, weight)
        product = graph.matmul(name, value, weight)
        del weight
        scale = self._norm(norm) * np.float32(self._added)
        return graph.norm(f"{name}_norm", product, scale, self._model.norm_eps)

    def _projections(self, graph: Graph, layer: LayerParts, index: int, hidden: str) -> list[Tensor]:
        part = layer.operator
        assert isinstance(part, AttentionParts)
        normed = graph.norm("end_norm", hidden, self._norm(layer.norm), self._stream_eps)
        wanted: list[tuple[str, Role, str]] = [("q", "q", part.q), ("k", "k", part.k), ("v", "v", part.v)]
        if part.gate is not None:
            wanted.append(("attn_gate", "gate", part.gate))
        tensors = []
        for name, role, matrix in wanted:
            weight = self._weights(matrix)
            graph.matmul(name, normed, weight)
            tensors.append(_tensor(name, role, ["T", len(weight)], index))
        return tensors

    def _head(self, graph: Graph, hidden: str, *, last_row: bool) -> Tensor:
        """The final norm and lm_head: of the last row only where conv layers make the segment run for all."""
        if last_row:
            hidden = graph.last_row("last_row", hidden)
        normed = graph.norm("end_norm", hidden, self._norm(self._model.final_norm), self._stream_eps)
        if self._model.lm_head is None:
            graph.stored_matmul("logits", normed, self._table)
        else:
            graph.matmul("logits", normed, self._weights(self._model.lm_head))
        return _tensor("logits", "logits", [1 if last_row else "T", self._model.vocab_size])

    def _norm(self, name: str) -> Array:
        weight = self._weights(name)
        return weight + np.float32(self._model.norm_offset) if self._model.norm_offset else weight


def _tensor(name: str, role: Role, shape: list[int | str], layer: int | None = None) -> Tensor:
    return Tensor(name=name, role=role, shape=shape, layer=layer)  # type: ignore[arg-type]  # "T" or sizes
