"""A segment as an ONNX graph of float32 matrices, which is also what the NPU's graphs are built from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from convert.graphs import Graph, StoredMatrix
from convert.matrices import Matrices, Part


class FloatGraph(Graph):
    """See segments.Writing."""

    def __init__(self, data: Path, matrices: Matrices) -> None:
        super().__init__(data)
        self._matrices = matrices

    def products(self, value: str, parts: Mapping[str, Part]) -> None:
        for name, part in parts.items():
            self.matmul(name, value, self._matrices.dense(part))

    def head(self, name: str, value: str, part: Part, *, table: StoredMatrix | None) -> str:
        if table is not None:
            return self.stored_matmul(name, value, table)
        return self.matmul(name, value, self._matrices.dense(part))
