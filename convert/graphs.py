"""One ONNX graph under construction, its matrices in a data file beside it.

Only operators that rknn-toolkit2 2.5.0 takes: norms and activations are written out, since it refuses
LayerNormalization, RMSNormalization and Gelu. Knows nothing of models, nor of where weights come from.

Axes: T tokens in the call. A weight matrix is (outputs, inputs), float32, as in Hugging Face checkpoints.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from backends.hybrid.meta import Tensor

OPSET = 17
IR_VERSION = 8
ALIGNMENT = 4096  # of each matrix in a data file: page borders, so that the file can be mapped in place
_COPIED_BYTES = 8 * 1024 * 1024  # of a transposed matrix, at a time
_TO_THE_END = 2**63 - 1

Array = npt.NDArray[np.float32]
Stored = npt.NDArray[np.float32] | npt.NDArray[np.uint8]


@dataclass(frozen=True)
class StoredMatrix:
    """A float32 matrix that already lies in a file of the folder: the embedding table, for a tied lm_head.

    The segment's Build does not list that file; Meta.embedding does, with its hash.
    """

    file: str
    offset_bytes: int
    shape: tuple[int, int]


class DataFile:
    """Matrices one after another, each from a page border on, hashed while they are written."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self.size_bytes = 0
        self._file = path.open("wb")
        self._hash = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """The hash of what was written so far."""
        return self._hash.hexdigest()

    def append(self, matrix: Stored) -> tuple[int, int]:
        """Write an array in C order, however it lies, and return (offset_bytes, length_bytes)."""
        self._write(bytes(-self.size_bytes % ALIGNMENT))
        offset = self.size_bytes
        row_bytes = max(1, matrix.nbytes // len(matrix))
        rows = len(matrix) if matrix.flags.c_contiguous else max(1, _COPIED_BYTES // row_bytes)
        for start in range(0, len(matrix), rows):
            block = np.ascontiguousarray(matrix[start : start + rows], matrix.dtype.newbyteorder("<"))
            self._write(block.reshape(-1).view(np.uint8).data)
        return offset, self.size_bytes - offset

    def close(self) -> None:
        """Finish the file."""
        self._file.close()

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.size_bytes += len(data)


class Graph:
    """Collects nodes and weights. Small weights go into the graph itself, matrices into the data file.

    A context manager: leaving it closes the data file, and removes it if it holds nothing.
    """

    def __init__(self, data: Path, domains: Mapping[str, int] | None = None) -> None:
        """data: the file for matrices. domains: versions of further sets of operators, by name."""
        self.data = DataFile(data)
        self._domains = domains or {}
        self._path = data
        self._nodes: list[NodeProto] = []
        self._weights: list[TensorProto] = []

    def __enter__(self) -> Graph:
        return self

    def __exit__(self, *_: object) -> None:
        self.data.close()
        if not self.data.size_bytes:
            self._path.unlink()

    def node(
        self, operator: str, output: str, *inputs: str, domain: str = "", **attributes: int | list[int]
    ) -> str:
        """Add a node and return the name of its output."""
        node = helper.make_node(operator, inputs, [output], name=output, domain=domain)
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

    def silu(self, name: str, value: str) -> str:
        """x times the sigmoid of x."""
        sigmoid = self.node("Sigmoid", f"{name}_sigmoid", value)
        return self.node("Mul", f"{name}_silu", value, sigmoid)

    def add(self, name: str, left: str, right: str) -> str:
        """The sum of two values."""
        return self.node("Add", name, left, right)

    def multiply(self, name: str, left: str, right: str) -> str:
        """The product of two values, element by element."""
        return self.node("Mul", name, left, right)

    def gelu_tanh(self, name: str, value: str) -> str:
        """GELU by tanh: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) (arXiv 1606.08415)."""
        for part, number in (
            ("cubic", 0.044715),
            ("slope", math.sqrt(2 / math.pi)),
            ("one", 1),
            ("half", 0.5),
        ):
            self._small(f"{name}_{part}", np.array([number], np.float32))
        square = self.node("Mul", f"{name}_square", value, value)
        bent = self.node("Mul", f"{name}_bent", square, f"{name}_cubic")
        stretch = self.node("Add", f"{name}_stretch", bent, f"{name}_one")
        inner = self.node("Mul", f"{name}_inner", value, stretch)
        scaled = self.node("Mul", f"{name}_scaled", inner, f"{name}_slope")
        tanh = self.node("Tanh", f"{name}_tanh", scaled)
        raised = self.node("Add", f"{name}_raised", tanh, f"{name}_one")
        halved = self.node("Mul", f"{name}_halved", raised, f"{name}_half")
        return self.node("Mul", f"{name}_gelu", value, halved)

    def causal_conv(self, name: str, state: str, value: str, kernel: Array) -> str:
        """Depthwise causal convolution of the rows of state and value, with a row out for each of value.

        state: the rows before, one less than the kernel has taps. kernel: (size, taps), the last tap is that
        of a row itself. Written as a sum of shifted rows, which any runtime has at any length.
        """
        taps = kernel.shape[1]
        rows = self.node("Concat", f"{name}_rows", state, value, axis=0)
        self.integers(f"{name}_axis", [0])
        total = ""
        for tap in range(taps):
            self.integers(f"{name}_{tap}_start", [tap])
            self.integers(f"{name}_{tap}_end", [tap + 1 - taps or _TO_THE_END])
            self._small(f"{name}_{tap}_weight", kernel[:, tap])
            places = (f"{name}_{tap}_start", f"{name}_{tap}_end", f"{name}_axis")
            shifted = self.node("Slice", f"{name}_{tap}_rows", rows, *places)
            product = self.node("Mul", f"{name}_{tap}", shifted, f"{name}_{tap}_weight")
            total = self.node("Add", f"{name}_{tap}_sum", total, product) if total else product
        return total

    def last_row(self, name: str, value: str) -> str:
        """The last row of value, (1, size)."""
        for part, number in (("start", -1), ("end", _TO_THE_END), ("axis", 0)):
            self.integers(f"{name}_{part}", [number])
        return self.node("Slice", name, value, f"{name}_start", f"{name}_end", f"{name}_axis")

    def matmul(self, name: str, value: str, weight: Array) -> str:
        """value (T, in) times the transpose of weight (out, in); stored transposed, as MatMul wants it."""
        self.external(f"{name}_weight", weight.T)
        return self.node("MatMul", name, value, f"{name}_weight")

    def stored_matmul(self, name: str, value: str, matrix: StoredMatrix) -> str:
        """value (T, in) times the transpose of a matrix (out, in) that another file of the folder holds.

        Gemm, because it reads the matrix as it lies: the embedding table then serves as lm_head too.
        """
        length = matrix.shape[0] * matrix.shape[1] * 4
        self._external(f"{name}_weight", matrix.shape, matrix.file, matrix.offset_bytes, length)
        return self.node("Gemm", name, value, f"{name}_weight", transB=1)

    def split(self, value: str, results: Mapping[str, int]) -> None:
        """Cut the last axis of a value into results of these sizes."""
        self.integers(f"{value}_sizes", list(results.values()))
        node = helper.make_node(
            "Split", [value, f"{value}_sizes"], list(results), name=f"{value}_split", axis=-1
        )
        self._nodes.append(node)

    def external(self, name: str, array: Stored) -> int:
        """Put a weight into the data file; return where it begins there, in bytes."""
        offset, length = self.data.append(array)
        kind = TensorProto.UINT8 if array.dtype == np.uint8 else TensorProto.FLOAT
        self._external(name, array.shape, self.data.name, offset, length, kind)
        return offset

    def integers(self, name: str, values: list[int]) -> None:
        """Add a list of whole numbers as a weight."""
        self._weights.append(numpy_helper.from_array(np.array(values, np.int64), name))

    def model(self, name: str, inputs: list[Tensor], outputs: list[Tensor]) -> ModelProto:
        """Return the whole as a model with the opset and IR version rknn-toolkit2 reads."""
        graph = helper.make_graph(
            self._nodes, name, list(map(_value, inputs)), list(map(_value, outputs)), self._weights
        )
        opsets = [
            helper.make_opsetid(domain, version) for domain, version in {"": OPSET, **self._domains}.items()
        ]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="rkserve")

    def _small(self, name: str, value: Array) -> None:
        self._weights.append(numpy_helper.from_array(np.ascontiguousarray(value, np.float32), name))

    def _external(
        self,
        name: str,
        shape: Sequence[int],
        file: str,
        offset: int,
        length: int,
        kind: int = TensorProto.FLOAT,
    ) -> None:
        tensor = TensorProto(name=name, data_type=kind, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", file), ("offset", str(offset)), ("length", str(length))):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, value
        self._weights.append(tensor)


def _value(tensor: Tensor) -> ValueInfoProto:
    return helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, tensor.shape)
