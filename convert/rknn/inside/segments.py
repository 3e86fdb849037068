"""An executor whose segments are computed by any function: onnxruntime, the toolkit's simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnxruntime

from backends.hybrid.buffers import Buffers
from backends.hybrid.executor import Array
from backends.hybrid.folder import HybridFolder

Compute = Callable[[int, Sequence[Array]], Sequence[Array]]  # a segment's index and inputs -> its outputs


class Call:
    """One segment at one length. See executor.Call."""

    def __init__(
        self, index: int, compute: Compute, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self._index = index
        self._compute = compute

    def run(self) -> None:
        for output, value in zip(self.outputs, self._compute(self._index, self.inputs), strict=True):
            output[...] = value


class Segments:
    """All segments of a folder, at the lengths that are built. See executor.Executor."""

    def __init__(self, folder: HybridFolder, lengths: Sequence[int], compute: Compute, runtime: str) -> None:
        self.runtime = runtime
        self.max_tokens = lengths[-1]
        self._segments = folder.meta.segments
        self._lengths = lengths
        self._compute = compute
        self._buffers = Buffers(self.max_tokens)

    def length_for(self, tokens: int) -> int:
        return next(length for length in self._lengths if length >= tokens)

    def bind(self, length: int) -> Sequence[Call]:
        calls = []
        stream = 0  # a segment's stream goes into another buffer than it came from
        for index, segment in enumerate(self._segments):
            inputs = self._buffers.views(segment.inputs, length, stream)
            stream ^= any(tensor.role == "hidden" for tensor in segment.outputs)
            outputs = self._buffers.views(segment.outputs, length, stream)
            calls.append(Call(index, self._compute, inputs, outputs))
        return calls

    def close(self) -> None:
        pass


class OnOnnxruntime:
    """Computes segments from their fp32 graphs. keep: hold them in memory, else one at a time is loaded."""

    def __init__(self, folder: HybridFolder, *, keep: bool) -> None:
        self._folder = folder
        self._keep = keep
        self._sessions: dict[int, Any] = {}

    def __call__(self, index: int, inputs: Sequence[Array]) -> Sequence[Array]:
        session = self._sessions.get(index) or self._open(self._folder.file(self._folder.builds[index].file))
        if self._keep:
            self._sessions[index] = session
        tensors = self._folder.meta.segments[index]
        feeds = {tensor.name: array for tensor, array in zip(tensors.inputs, inputs, strict=True)}
        values: Sequence[Array] = session.run([tensor.name for tensor in tensors.outputs], feeds)
        return values

    def _open(self, path: Path) -> Any:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.enable_cpu_mem_arena = False
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
