"""ONNX graphs of the segments of a Llama-like model, from plain numpy weights.

The graphs hold matrix products, norms and SwiGLU; RoPE, softmax and the KV cache are the engine's and are in
no graph. Only operators that rknn-toolkit2 2.5.0 takes: norms are written out, since LayerNormalization is
refused. Knows nothing of the file the weights come from, nor of the engine that runs the graphs.

Axes: T tokens in the call, D hidden size, Q num_heads * head_dim, KV num_kv_heads * head_dim, F feed-forward
size, V vocabulary. Weights stand as in Hugging Face checkpoints: a matrix is (outputs, inputs), float32.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from backends.hybrid.meta import Build, Role, Segment, Tensor

OPSET = 17
IR_VERSION = 8
ALIGNMENT = 4096  # of each matrix in a data file: page borders, so that the file can be mapped in place

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Projections:
    """The input norm of an attention layer, norm (D,), and its q (Q, D), k (KV, D), v (KV, D)."""

    layer: int
    norm: Array
    q: Array
    k: Array
    v: Array


@dataclass(frozen=True)
class FeedForward:
    """The end of a layer: output projection o (D, Q), norm (D,), gate (F, D), up (F, D), down (D, F)."""

    layer: int
    o: Array
    norm: Array
    gate: Array
    up: Array
    down: Array


@dataclass(frozen=True)
class StoredMatrix:
    """A float32 matrix that already lies in a file of the folder: the embedding table, for a tied lm_head.

    The segment's Build does not list that file; Meta.embedding does, with its hash.
    """

    file: str
    offset_bytes: int
    shape: tuple[int, int]


@dataclass(frozen=True)
class Head:
    """The end of the model: final norm (D,) and lm_head (V, D), a stored matrix where it is tied."""

    norm: Array
    lm_head: Array | StoredMatrix


def write_segment(
    directory: Path,
    name: str,
    begin: FeedForward | None,
    end: Projections | Head,
    norm_eps: float,
) -> Segment:
    """Write one segment as NAME.onnx and NAME.data (the matrices) and return its description.

    begin: what is left to do of the previous attention layer, None in the first segment. end: the projections
    of the next layer, or the head. The caller has checked that the shapes fit each other. Raises OSError.
    """
    graph = _Graph(directory / f"{name}.data")
    hidden_size = len(end.norm)
    inputs = [Tensor(name="hidden", role="hidden", shape=["T", hidden_size])]
    outputs: list[Tensor] = []
    with graph:
        hidden = "hidden"
        if begin is not None:
            inputs.append(Tensor(name="attn", role="attn", shape=["T", begin.o.shape[1]], layer=begin.layer))
            hidden = _feed_forward(graph, begin, norm_eps)
        normed = graph.norm("end_norm", hidden, end.norm, norm_eps)
        if isinstance(end, Projections):
            if begin is not None:
                outputs.append(Tensor(name=hidden, role="hidden", shape=["T", hidden_size]))
            projections: list[tuple[Role, Array]] = [("q", end.q), ("k", end.k), ("v", end.v)]
            for role, weight in projections:
                graph.matmul(role, normed, weight)
                outputs.append(Tensor(name=role, role=role, shape=["T", len(weight)], layer=end.layer))
        else:
            if isinstance(end.lm_head, StoredMatrix):
                graph.stored_matmul("logits", normed, end.lm_head)
            else:
                graph.matmul("logits", normed, end.lm_head)
            outputs.append(Tensor(name="logits", role="logits", shape=["T", end.lm_head.shape[0]]))
    model = graph.model(name, inputs, outputs).SerializeToString(deterministic=True)
    (directory / f"{name}.onnx").write_bytes(model)
    build = Build(
        executor="onnx",
        variant="fp32",
        file=f"{name}.onnx",
        sha256=hashlib.sha256(model).hexdigest(),
        size_bytes=len(model),
        data_file=graph.data.name if graph.data.size_bytes else None,
        data_sha256=graph.data.sha256 if graph.data.size_bytes else None,
        data_size_bytes=graph.data.size_bytes or None,
    )
    return Segment(inputs=inputs, outputs=outputs, builds=[build])


def _feed_forward(graph: _Graph, weights: FeedForward, norm_eps: float) -> str:
    attention = graph.matmul("o", "attn", weights.o)
    middle = graph.node("Add", "hidden_mid", "hidden", attention)
    normed = graph.norm("ffn_norm", middle, weights.norm, norm_eps)
    gate = graph.matmul("gate", normed, weights.gate)
    sigmoid = graph.node("Sigmoid", "gate_sigmoid", gate)
    silu = graph.node("Mul", "gate_silu", gate, sigmoid)
    up = graph.matmul("up", normed, weights.up)
    product = graph.node("Mul", "ffn", silu, up)
    down = graph.matmul("down", product, weights.down)
    return graph.node("Add", "hidden_out", middle, down)


class _DataFile:
    """Matrices one after another, each from a page border on, hashed while they are written."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self.size_bytes = 0
        self._file = path.open("wb")
        self._hash = hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def append(self, matrix: Array) -> tuple[int, int]:
        """Write a matrix in C order and return (offset_bytes, length_bytes)."""
        self._write(bytes(-self.size_bytes % ALIGNMENT))
        offset = self.size_bytes
        self._write(np.ascontiguousarray(matrix, dtype="<f4").reshape(-1).view(np.uint8).data)
        return offset, self.size_bytes - offset

    def close(self) -> None:
        self._file.close()

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.size_bytes += len(data)


class _Graph:
    """Collects nodes and weights. Norm weights go into the graph itself, matrices into the data file."""

    def __init__(self, data: Path) -> None:
        self.data = _DataFile(data)
        self._path = data
        self._nodes: list[NodeProto] = []
        self._weights: list[TensorProto] = []

    def __enter__(self) -> _Graph:
        return self

    def __exit__(self, *_: object) -> None:
        self.data.close()
        if not self.data.size_bytes:
            self._path.unlink()

    def node(self, operator: str, output: str, *inputs: str, **attributes: int | list[int]) -> str:
        """Add a node and return the name of its output."""
        node = helper.make_node(operator, inputs, [output], name=output)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        self._nodes.append(node)
        return output

    def norm(self, name: str, value: str, weight: Array, eps: float) -> str:
        """RMS norm, written out: x / sqrt(mean(x^2) + eps) * weight."""
        self._small(f"{name}_eps", np.array([eps], np.float32))
        self._small(f"{name}_weight", weight)
        square = self.node("Mul", f"{name}_square", value, value)
        mean = self.node("ReduceMean", f"{name}_mean", square, axes=[-1], keepdims=1)
        shifted = self.node("Add", f"{name}_shifted", mean, f"{name}_eps")
        root = self.node("Sqrt", f"{name}_root", shifted)
        normed = self.node("Div", f"{name}_unit", value, root)
        return self.node("Mul", name, normed, f"{name}_weight")

    def matmul(self, name: str, value: str, weight: Array) -> str:
        """value (T, in) times the transpose of weight (out, in); stored transposed, as MatMul wants it."""
        offset, length = self.data.append(weight.T)
        self._external(f"{name}_weight", weight.shape[::-1], self.data.name, offset, length)
        return self.node("MatMul", name, value, f"{name}_weight")

    def stored_matmul(self, name: str, value: str, matrix: StoredMatrix) -> str:
        """value (T, in) times the transpose of a matrix (out, in) that another file of the folder holds.

        Gemm, because it reads the matrix as it lies: the embedding table then serves as lm_head too.
        """
        length = matrix.shape[0] * matrix.shape[1] * 4
        self._external(f"{name}_weight", matrix.shape, matrix.file, matrix.offset_bytes, length)
        return self.node("Gemm", name, value, f"{name}_weight", transB=1)

    def model(self, name: str, inputs: list[Tensor], outputs: list[Tensor]) -> ModelProto:
        """Return the whole as a model with the opset and IR version rknn-toolkit2 reads."""
        graph = helper.make_graph(
            self._nodes, name, list(map(_value, inputs)), list(map(_value, outputs)), self._weights
        )
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="rkserve")

    def _small(self, name: str, value: Array) -> None:
        self._weights.append(numpy_helper.from_array(np.ascontiguousarray(value, np.float32), name))

    def _external(self, name: str, shape: Sequence[int], file: str, offset: int, length: int) -> None:
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", file), ("offset", str(offset)), ("length", str(length))):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, value
        self._weights.append(tensor)


def _value(tensor: Tensor) -> ValueInfoProto:
    return helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, tensor.shape)
