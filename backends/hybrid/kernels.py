"""What the engine computes between segments and over the vocabulary: the seam between numpy and native code.

numpy's is always there. Native kernels (the distribution rkserve-kernels) do the same within 1e-5, faster;
they are used where they are installed and this processor can run them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Protocol

import numpy as np
import numpy.typing as npt

from backends.hybrid import gate, likelihood
from backends.hybrid.attention import Attention
from backends.hybrid.meta import Rope
from backends.hybrid.program import Step
from backends.hybrid.rope import RotaryTable
from backends.hybrid.rows import write_rows

Array = npt.NDArray[np.float32]
Half = npt.NDArray[np.float16]
Ids = npt.NDArray[np.int64]


class Attend(Protocol):
    """One type of attention. Not thread-safe."""

    def attend(
        self, q: Array, keys: npt.NDArray[np.floating], values: npt.NDArray[np.floating], out: Array
    ) -> None:
        """As Attention.attend. q may be changed."""


class Rotate(Protocol):
    """The rotary embedding of one layer type. Not thread-safe."""

    def rotate(self, x: Array, position: int) -> None:
        """As RotaryTable.rotate."""


class Kernels(Protocol):
    """The computations themselves. All change nothing but what they are told to."""

    @property
    def name(self) -> str:
        """Name and version, for people."""

    def attention(self, scale: float, window: int | None, softcap: float | None, head_dim: int) -> Attend:
        """Return one type of attention; parameters as of Attention."""

    def rotary(self, rope: Rope, head_dim: int) -> Rotate:
        """Return the rotary embedding of one layer type."""

    def rms_norm(self, x: Array, weight: Array, eps: float) -> None:
        """x / sqrt(mean(x^2) + eps) * weight over the last axis, in place; x is contiguous."""

    def apply_gate(self, attn: Array, gate: Array) -> None:
        """As gate.apply_gate."""

    def write_rows(self, rows: npt.NDArray[np.floating], to: npt.NDArray[np.floating]) -> None:
        """As rows.write_rows."""

    def weights(self, logits: Array, temperature: float) -> npt.NDArray[np.float64]:
        """As likelihood.weights."""

    def largest(self, values: npt.NDArray[np.floating], count: int) -> Ids:
        """As likelihood.largest; count is at most the number of values."""

    def to_half(self, source: Array, target: Half) -> None:
        """Round float32 to float16 of the same shape, of any strides; what is too large becomes infinity."""

    def from_half(self, source: Half, target: Array) -> None:
        """Widen float16 to float32 of the same shape, of any strides."""

    def segment(self, steps: Sequence[Step]) -> Callable[[], None] | None:
        """Return what computes a segment's steps (program.bind), or None where these kernels cannot."""


class NumpyKernels:
    """See Kernels."""

    name = f"numpy {np.__version__}"

    def attention(self, scale: float, window: int | None, softcap: float | None, head_dim: int) -> Attend:
        return Attention(scale, window, softcap)

    def rotary(self, rope: Rope, head_dim: int) -> Rotate:
        return RotaryTable(rope, head_dim)

    def rms_norm(self, x: Array, weight: Array, eps: float) -> None:
        x /= np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps))
        x *= weight

    def apply_gate(self, attn: Array, gate_: Array) -> None:
        gate.apply_gate(attn, gate_)

    def write_rows(self, rows: npt.NDArray[np.floating], to: npt.NDArray[np.floating]) -> None:
        write_rows(rows, to)

    def weights(self, logits: Array, temperature: float) -> npt.NDArray[np.float64]:
        return likelihood.weights(logits, temperature)

    def largest(self, values: npt.NDArray[np.floating], count: int) -> Ids:
        return likelihood.largest(values, count)

    def to_half(self, source: Array, target: Half) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            np.copyto(target, source, casting="same_kind")

    def from_half(self, source: Half, target: Array) -> None:
        with np.errstate(invalid="ignore"):
            np.copyto(target, source)

    def segment(self, steps: Sequence[Step]) -> None:
        return None


NUMPY = NumpyKernels()


def best_kernels(threads: int) -> Kernels:
    """Return native kernels with so many threads, or numpy's where they are not installed or cannot run."""
    try:
        from backends.hybrid.native import NativeKernels

        return NativeKernels(threads, metadata.version("rkserve-kernels"))
    except (ImportError, MemoryError):  # not installed, another processor, or no thread to be had
        return NUMPY
