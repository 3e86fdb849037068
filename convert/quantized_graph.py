"""A segment as an ONNX graph whose matrices stay in the blocks of few bits that the file has them in.

A product is onnxruntime's MatMulNBits, which holds scale * (value - zero) exactly, on activations that it
rounds to 8 bits (accuracy_level 4: twice as fast as in float32). The offsets of a Q4_1 block are a product of
their own, of the sums of the inputs of each block. Products of one input are computed together: a fifth
faster.

The zero points are always said, also where they are the ones that go without saying: on aarch64 onnxruntime's
kernels for the form without them lose precision (5e-3 of a weight).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from convert.graphs import Graph, StoredMatrix
from convert.matrices import Matrices, Part
from convert.quantized import BLOCK, Quantized, stacked

DOMAIN = "com.microsoft"
INT8_ACTIVATIONS = 4  # of MatMulNBits' accuracy_level


@dataclass(frozen=True)
class StoredBlocks:
    """Where a result's matrix lies: `rows` of it from `first` on, in bytes of the data file.

    bits: 4 or 8, as in Quantized; 32 for a dense matrix, whose values are (K, N) float32, or (N, K) if
    `in_table`: then they lie in the embedding's file. offsets: (B, N) float32.
    """

    bits: Literal[4, 8, 32]
    shape: tuple[int, int]
    first: int
    rows: int
    values: int
    scales: int | None = None
    offsets: int | None = None
    in_table: bool = False


class QuantizedGraph(Graph):
    """See segments.Writing. stored: the matrix of each product, by the name of its result."""

    def __init__(self, data: Path, matrices: Matrices) -> None:
        super().__init__(data, {DOMAIN: 1})
        self.stored: dict[str, StoredBlocks] = {}
        self._matrices = matrices
        self._sums: dict[str, str] = {}

    def products(self, value: str, parts: Mapping[str, Part]) -> None:
        found = {name: self._matrices.quantized(part) for name, part in parts.items()}
        known = [matrix for matrix in found.values() if matrix is not None]
        whole = stacked(known) if len(known) == len(parts) else None
        if whole is None or len(parts) == 1:
            for name, part in parts.items():
                self._product(name, value, found[name], part)
            return
        sizes = {name: matrix.shape[0] for name, matrix in zip(parts, known, strict=True)}
        self.split(self._blocks_product("_".join(parts), value, whole, sizes), sizes)

    def head(self, name: str, value: str, part: Part, *, table: StoredMatrix | None) -> str:
        matrix = self._matrices.quantized(part)
        if matrix is None and table is not None:
            self.stored[name] = StoredBlocks(
                32, table.shape, 0, table.shape[0], table.offset_bytes, in_table=True
            )
            return self.stored_matmul(name, value, table)
        self._product(name, value, matrix, part)
        return name

    def _product(self, name: str, value: str, matrix: Quantized | None, part: Part) -> None:
        if matrix is not None:
            self._blocks_product(name, value, matrix, {name: matrix.shape[0]})
            return
        dense = self._matrices.dense(part)
        start = self.external(f"{name}_weight", dense.T)
        self.node("MatMul", name, value, f"{name}_weight")
        self.stored[name] = StoredBlocks(32, (dense.shape[0], dense.shape[1]), 0, len(dense), start)

    def _blocks_product(self, name: str, value: str, matrix: Quantized, results: Mapping[str, int]) -> str:
        """A product with one matrix. results: to whom its outputs belong, one after another, and how many."""
        outputs, inputs = matrix.shape
        blocks = inputs // BLOCK
        zero = 0x88 if matrix.bits == 4 else 0x80
        zeros = np.full((outputs, (blocks * matrix.bits + 7) // 8), zero, np.uint8)
        values = self.external(f"{name}_values", matrix.values)
        scales = self.external(f"{name}_scales", matrix.scales.reshape(-1))
        self.external(f"{name}_zeros", zeros.reshape(-1))
        whole = name if matrix.offsets is None else f"{name}_centred"
        self.node(
            "MatMulNBits", whole, value, f"{name}_values", f"{name}_scales", f"{name}_zeros",
            domain=DOMAIN, K=inputs, N=outputs, bits=matrix.bits, block_size=BLOCK,
            accuracy_level=INT8_ACTIVATIONS,
        )  # fmt: skip
        offsets = None
        if matrix.offsets is not None:
            offsets = self.external(f"{name}_offsets", matrix.offsets.T)
            shift = self.node("MatMul", f"{name}_shift", self._block_sums(value, blocks), f"{name}_offsets")
            self.add(name, whole, shift)
        first = 0
        for result, rows in results.items():
            self.stored[result] = StoredBlocks(
                matrix.bits, matrix.shape, first, rows, values, scales, offsets
            )
            first += rows
        return name

    def _block_sums(self, value: str, blocks: int) -> str:
        """The sums of a value's blocks, (T, B)."""
        if value not in self._sums:
            self.integers(f"{value}_blocks_shape", [0, blocks, BLOCK])
            self.integers(f"{value}_blocks_axis", [2])
            parted = self.node("Reshape", f"{value}_blocks", value, f"{value}_blocks_shape")
            self._sums[value] = self.node(
                "ReduceSum", f"{value}_sums", parted, f"{value}_blocks_axis", keepdims=0
            )
        return self._sums[value]
