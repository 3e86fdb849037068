"""Matrices as a file keeps them, in few bits: blocks of 32 inputs that share a scale.

Taken from the blocks of ggml's types, never quantized here: a weight keeps the value the file gives it.
Layouts of the blocks: ggml-common.h of llama.cpp (block_q4_0, block_q4_1, block_q8_0).

Axes: N outputs, K inputs, B = K / 32 blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from convert.graphs import Array

BLOCK = 32
TYPES = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}  # ggml's names, and bits

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Quantized:
    """A weight is scale * (value - zero) + offset, of its block; zero is 8 for 4 bits, 128 for 8 bits.

    values: (N, B, 4 * bits) uint8, of 4 bits two in a byte, the first in the lower half: as onnxruntime's
    MatMulNBits takes them. scales, offsets: (N, B) float32; offsets None: all 0.
    """

    bits: Literal[4, 8]
    values: Bytes
    scales: Array
    offsets: Array | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.values.shape[0], self.values.shape[1] * BLOCK

    def __getitem__(self, rows: slice | npt.NDArray[np.intp]) -> Quantized:
        """Some of the outputs."""
        offsets = None if self.offsets is None else self.offsets[rows]
        return replace(self, values=self.values[rows], scales=self.scales[rows], offsets=offsets)

    def times(self, factor: float) -> Quantized:
        """The matrix times a number; exact for a power of two."""
        number = np.float32(factor)
        offsets = None if self.offsets is None else self.offsets * number
        return replace(self, scales=self.scales * number, offsets=offsets)

    def dense(self) -> Array:
        """The weights, (N, K) float32."""
        zero, values = 2 ** (self.bits - 1), self.values
        if self.bits == 4:
            values = np.stack([values & 15, values >> 4], axis=-1).reshape(*values.shape[:2], BLOCK)
        weights = (values.astype(np.float32) - zero) * self.scales[..., None]
        if self.offsets is not None:
            weights += self.offsets[..., None]
        result: Array = weights.reshape(self.shape)
        return result


def stacked(matrices: Sequence[Quantized]) -> Quantized | None:
    """Return matrices of the same inputs as one, outputs after outputs; None if they differ in kind."""
    first = matrices[0]
    if any((one.bits, one.offsets is None) != (first.bits, first.offsets is None) for one in matrices):
        return None
    return Quantized(
        first.bits,
        np.concatenate([one.values for one in matrices]),
        np.concatenate([one.scales for one in matrices]),
        np.concatenate([one.offsets for one in matrices if one.offsets is not None])
        if first.offsets is not None
        else None,
    )


def from_ggml(kind: str, data: Bytes, shape: tuple[int, int]) -> Quantized:
    """Return a matrix from its ggml blocks. kind: one of TYPES; data: all bytes of the tensor."""
    outputs, blocks = shape[0], shape[1] // BLOCK
    rows = data.reshape(outputs, blocks, -1)
    scales = rows[..., :2].copy().view("<f2")[..., 0].astype(np.float32)
    if kind == "Q8_0":  # d, 32 signed values
        return Quantized(8, rows[..., 2:] ^ np.uint8(128), scales)
    packed = rows[..., -16:]  # values 0 to 15 in the lower halves, 16 to 31 in the upper ones
    values = np.concatenate([packed & 15, packed >> 4], axis=-1)
    packed = values[..., 0::2] | (values[..., 1::2] << 4)
    if kind == "Q4_0":  # d, values: d * (q - 8)
        return Quantized(4, packed, scales)
    least = rows[..., 2:4].copy().view("<f2")[..., 0].astype(np.float32)
    return Quantized(
        4, packed, scales, least + 8 * scales
    )  # d, m, values: d * q + m = d * (q - 8) + (m + 8 d)
