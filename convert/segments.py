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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from backends.hybrid.meta import Build, Role, Segment, Tensor
from convert.float_graph import FloatGraph
from convert.graphs import Array, StoredMatrix
from convert.matrices import Matrices, Part
from convert.model import AttentionParts, ConvParts, Cut, LayerParts, Model
from convert.program import Program
from convert.quantized_graph import QuantizedGraph

FLOAT = "fp32"


class Writing(Protocol):
    """What a segment is written into, operator by operator. Each gives back the name of its result."""

    def norm(self, name: str, value: str, weight: Array, eps: float) -> str:
        """RMS norm: value / sqrt(mean(value^2) + eps) * weight."""

    def add(self, name: str, left: str, right: str) -> str:
        """The sum of two values."""

    def multiply(self, name: str, left: str, right: str) -> str:
        """The product of two values, element by element."""

    def silu(self, name: str, value: str) -> str:
        """x times its sigmoid."""

    def gelu_tanh(self, name: str, value: str) -> str:
        """GELU by tanh."""

    def causal_conv(self, name: str, state: str, value: str, kernel: Array) -> str:
        """A depthwise causal convolution."""

    def last_row(self, name: str, value: str) -> str:
        """The last row of a value."""

    def products(self, value: str, parts: Mapping[str, Part]) -> None:
        """Products of one value with matrices, by the names of the results."""

    def head(self, name: str, value: str, part: Part, *, table: StoredMatrix | None) -> str:
        """The product with lm_head. table: where that matrix lies, if it is the embedding's too."""


class SegmentWriter:
    """Writes the segments of one model into a folder."""

    def __init__(
        self,
        directory: Path,
        model: Model,
        matrices: Matrices,
        table: StoredMatrix,
        residual_scale: float = 1.0,
        variant: str | None = None,
    ) -> None:
        """table: the embedding, for a tied lm_head. variant: the quantized one's name, if there is one."""
        self._directory = directory
        self._model = model
        self._matrices = matrices
        self._table = table
        self._variant = variant
        self._added = model.residual_multiplier / residual_scale
        self._stream_eps = model.norm_eps / residual_scale**2

    def write(self, name: str, cut: Cut) -> Segment:
        """Write one segment as NAME.onnx and NAME.data (the matrices) and return its description.

        A quantized variant adds NAME.VARIANT.onnx, NAME.VARIANT.json (a program for native kernels) and
        NAME.VARIANT.data, which both read. Raises OSError, and what getting the weights raises.
        """
        graph = FloatGraph(self._directory / f"{name}.data", self._matrices)
        with graph:
            inputs, outputs = self._compose(graph, cut)
        built = graph.model(name, inputs, outputs).SerializeToString(deterministic=True)
        builds = [self._build("onnx", FLOAT, f"{name}.onnx", built, graph)]
        if self._variant is not None:
            builds += self._quantized(f"{name}.{self._variant}", cut, inputs, outputs)
        return Segment(inputs=inputs, outputs=outputs, builds=builds)

    def _quantized(
        self, name: str, cut: Cut, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> list[Build]:
        assert self._variant is not None
        graph = QuantizedGraph(self._directory / f"{name}.data", self._matrices)
        with graph:
            self._compose(graph, cut)
        built = graph.model(name, list(inputs), list(outputs)).SerializeToString(deterministic=True)
        builds = [self._build("onnx", self._variant, f"{name}.onnx", built, graph)]
        program = Program(graph.stored)
        self._compose(program, cut)
        text = program.text()
        return [*builds, self._build("native", self._variant, f"{name}.json", text, graph)]

    def _build(
        self,
        executor: Literal["onnx", "native"],
        variant: str,
        file: str,
        content: bytes,
        graph: FloatGraph | QuantizedGraph,
    ) -> Build:
        (self._directory / file).write_bytes(content)
        data = graph.data
        return Build(
            executor=executor,
            variant=variant,
            file=file,
            sha256=hashlib.sha256(content).hexdigest(),
            size_bytes=len(content),
            data_file=data.name if data.size_bytes else None,
            data_sha256=data.sha256 if data.size_bytes else None,
            data_size_bytes=data.size_bytes or None,
        )

    def _compose(self, graph: Writing, cut: Cut) -> tuple[list[Tensor], list[Tensor]]:
        """Put a segment's operators into a graph; return what goes in and what comes out."""
        model, layers = self._model, self._model.layers
        stream_shape: list[int | str] = ["T", model.hidden_size]
        inputs = [_tensor("hidden", "hidden", stream_shape)]
        outputs: list[Tensor] = []
        hidden = "hidden"
        if cut.ends is not None:
            inputs.append(_tensor("attn", "attn", ["T", model.num_heads * model.head_dim], cut.ends))
            hidden = self._end_of_attention(graph, layers[cut.ends], hidden)
        for index in cut.convs:
            layer = layers[index]
            assert isinstance(layer.operator, ConvParts)
            state = f"conv_state_{index}"
            inputs.append(_tensor(state, "conv_state", [layer.operator.taps - 1, model.hidden_size], index))
            outputs.append(_tensor(f"bx_{index}", "bx", stream_shape, index))
            hidden = self._conv_layer(graph, index, layer, hidden, state)
        if cut.begins is None:
            outputs.append(self._head(graph, hidden, last_row=bool(cut.convs)))
        else:
            if hidden != "hidden":
                outputs.insert(0, _tensor(hidden, "hidden", stream_shape))
            outputs += self._projections(graph, layers[cut.begins], cut.begins, hidden)
        return inputs, outputs

    def _end_of_attention(self, graph: Writing, layer: LayerParts, hidden: str) -> str:
        assert isinstance(layer.operator, AttentionParts)
        out = self._onto_stream(graph, "o", "attn", layer.operator.o, layer.post_norm)
        middle = graph.add("hidden_mid", hidden, out)
        return self._feed_forward(graph, "", layer, middle)

    def _conv_layer(self, graph: Writing, index: int, layer: LayerParts, hidden: str, state: str) -> str:
        """One whole conv layer. B, C and x are products of their own: a split of one would be a copy more."""
        part, prefix = layer.operator, f"conv{index}_"
        assert isinstance(part, ConvParts)
        normed = graph.norm(f"{prefix}norm", hidden, self._norm(layer.norm), self._stream_eps)
        size = self._model.hidden_size
        names = [f"{prefix}{name}" for name in "bcx"]
        thirds = [Part(part.in_proj, slice(start, start + size)) for start in range(0, 3 * size, size)]
        graph.products(normed, dict(zip(names, thirds, strict=True)))
        b, c, x = names
        bx = graph.multiply(f"bx_{index}", b, x)
        kernel = self._matrices.vector(part.kernel)[:, 0]
        mixed = graph.causal_conv(f"{prefix}taps", state, bx, kernel)
        gated = graph.multiply(f"{prefix}gated", c, mixed)
        out = self._onto_stream(graph, f"{prefix}out", gated, part.out_proj, layer.post_norm)
        middle = graph.add(f"{prefix}hidden_mid", hidden, out)
        return self._feed_forward(graph, prefix, layer, middle)

    def _feed_forward(self, graph: Writing, prefix: str, layer: LayerParts, middle: str) -> str:
        normed = graph.norm(f"{prefix}ffn_norm", middle, self._norm(layer.ffn_norm), self._stream_eps)
        gate, up = f"{prefix}gate", f"{prefix}up"
        graph.products(normed, {gate: Part(layer.gate), up: Part(layer.up)})
        active = (graph.silu if self._model.ffn == "silu" else graph.gelu_tanh)(gate, gate)
        product = graph.multiply(f"{prefix}ffn", active, up)
        down = self._onto_stream(graph, f"{prefix}down", product, layer.down, layer.post_ffn_norm)
        return graph.add(f"{prefix}hidden_out", middle, down)

    def _onto_stream(self, graph: Writing, name: str, value: str, matrix: str, norm: str | None) -> str:
        """What is added to the stream: a product, with a norm after it where the model has one."""
        graph.products(value, {name: Part(matrix, factor=self._added if norm is None else 1.0)})
        if norm is None:
            return name
        return graph.norm(
            f"{name}_norm", name, self._norm(norm) * np.float32(self._added), self._model.norm_eps
        )

    def _projections(self, graph: Writing, layer: LayerParts, index: int, hidden: str) -> list[Tensor]:
        part = layer.operator
        assert isinstance(part, AttentionParts)
        normed = graph.norm("end_norm", hidden, self._norm(layer.norm), self._stream_eps)
        wanted: list[tuple[str, Role, str]] = [("q", "q", part.q), ("k", "k", part.k), ("v", "v", part.v)]
        if part.gate is not None:
            wanted.append(("attn_gate", "gate", part.gate))
        graph.products(normed, {name: Part(matrix) for name, _, matrix in wanted})
        shapes = self._model.shapes()
        return [_tensor(name, role, ["T", shapes[matrix][0]], index) for name, role, matrix in wanted]

    def _head(self, graph: Writing, hidden: str, *, last_row: bool) -> Tensor:
        """The final norm and lm_head: of the last row only where conv layers make the segment run for all."""
        if last_row:
            hidden = graph.last_row("last_row", hidden)
        normed = graph.norm("end_norm", hidden, self._norm(self._model.final_norm), self._stream_eps)
        tied = self._model.lm_head is None
        part = Part(self._model.lm_head or self._model.embedding)
        graph.head("logits", normed, part, table=self._table if tied else None)
        return _tensor("logits", "logits", [1 if last_row else "T", self._model.vocab_size])

    def _norm(self, name: str) -> Array:
        weight = self._matrices.vector(name)
        return weight + np.float32(self._model.norm_offset) if self._model.norm_offset else weight


def _tensor(name: str, role: Role, shape: list[int | str], layer: int | None = None) -> Tensor:
    return Tensor(name=name, role=role, shape=shape, layer=layer)  # type: ignore[arg-type]  # "T" or sizes
