"""The native kernels behind the engine's seam. Importing raises ImportError where they cannot run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import rkserve_kernels as native

from backends.hybrid.attention import Attention
from backends.hybrid.kernels import NUMPY, Attend, Half, Rotate
from backends.hybrid.meta import Rope
from backends.hybrid.program import Step
from backends.hybrid.rope import cosines_and_sines, inverse_frequencies, magnitude, table_size

Array = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

_HEAD_DIM_STEP, _MAX_HEAD_DIM = 8, 512  # what native attention takes


class NativeKernels:
    """See kernels.Kernels. threads: how many share an attention, the caller counted."""

    def __init__(self, threads: int, version: str) -> None:
        self.name = f"rkserve-kernels {version}, {threads} thread{'s' if threads > 1 else ''}"
        self._threads = native.threads(threads)

    def attention(self, scale: float, window: int | None, softcap: float | None, head_dim: int) -> Attend:
        if head_dim % _HEAD_DIM_STEP or head_dim > _MAX_HEAD_DIM:
            return Attention(scale, window, softcap)
        return _Attention(self._threads, scale, window, softcap)

    def rotary(self, rope: Rope, head_dim: int) -> Rotate:
        return _Rotary(rope)

    def rms_norm(self, x: Array, weight: Array, eps: float) -> None:
        native.rms_norm(x, weight, eps)

    def apply_gate(self, attn: Array, gate: Array) -> None:
        native.apply_gate(attn, gate)

    def write_rows(self, rows: npt.NDArray[np.floating], to: npt.NDArray[np.floating]) -> None:
        native.write_rows(rows, to)

    def weights(self, logits: Array, temperature: float) -> npt.NDArray[np.float64]:
        weights = np.empty(len(logits))
        native.weigh_logits(logits, weights, temperature)
        return weights

    def largest(self, values: npt.NDArray[np.floating], count: int) -> Ids:
        if count > len(values) // 4:  # most of it is sorted anyway
            return NUMPY.largest(values, count)
        indices = np.empty(count, np.int64)
        native.find_largest(values, indices)
        return indices

    def to_half(self, source: Array, target: Half) -> None:
        if source.flags.c_contiguous and target.flags.c_contiguous:
            native.to_half(source, target)
        else:
            NUMPY.to_half(source, target)

    def from_half(self, source: Half, target: Array) -> None:
        if source.flags.c_contiguous and target.flags.c_contiguous:
            native.from_half(source, target)
        else:
            NUMPY.from_half(source, target)

    def segment(self, steps: Sequence[Step]) -> Callable[[], None]:
        return partial(native.run_segment, native.segment(self._threads, list(steps)))


class _Attention:
    """See kernels.Attend."""

    def __init__(
        self, threads: native.Threads, scale: float, window: int | None, softcap: float | None
    ) -> None:
        self._threads = threads
        self._scale, self._window, self._softcap = scale, window or 0, softcap or 0.0

    def attend(
        self, q: Array, keys: npt.NDArray[np.floating], values: npt.NDArray[np.floating], out: Array
    ) -> None:
        native.attend(
            self._threads, q, keys, values, out.reshape(q.shape), self._scale, self._window, self._softcap
        )


class _Rotary:
    """See kernels.Rotate. Tables: (S, pairs) float32, growing."""

    def __init__(self, rope: Rope) -> None:
        self._frequencies = inverse_frequencies(rope)
        self._magnitude = magnitude(rope)
        self._interleaved = rope.style == "interleaved"
        self._cos: Array = np.empty((0, 0), np.float32)
        self._sin = self._cos
        self._grow(1)

    def rotate(self, x: Array, position: int) -> None:
        end = position + len(x)
        if end > len(self._cos):
            self._grow(end)
        native.rotate(x, self._cos[position:end], self._sin[position:end], self._interleaved)

    def _grow(self, positions: int) -> None:
        size = table_size(len(self._cos), positions)
        cos, sin = cosines_and_sines(self._frequencies, self._magnitude, size)
        self._cos, self._sin = cos.astype(np.float32), sin.astype(np.float32)
