"""Segments on onnxruntime, on the CPU.

How sessions are set up was measured with 31 segments of SmolLM2-135M and 2 threads:
- Thread pools do not spin. Spinning pools of 31 sessions fight each other (3 tokens/s for 38), and those that
  spin only within a run win a fifth on an idle machine and lose two thirds on a busy one. One pool for all
  sessions can be had from Python only with spinning.
- Weights are repacked at loading, which makes decode 1.3 and prefill 1.6 times as fast as reading them in the
  file's layout. They are held once all the same: the data files are mapped, and the pages let go.
- No arena: it rounds the repacked weights up (96 MB here) and gains nothing.
- Inputs and outputs are bound once: half the cost of a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from backends.base import BackendError
from backends.engine import Progress
from backends.hybrid.buffers import Buffers
from backends.hybrid.executor import Array
from backends.hybrid.folder import HybridFolder
from backends.hybrid.meta import Segment
from backends.hybrid.ort_failures import RUN_ERRORS, check_threads, load_error, run_error
from backends.hybrid.threads import thread_count

_ERRORS_ONLY = 3


class OrtCall:
    """One segment at one length, bound to buffers. See executor.Call."""

    def __init__(
        self, session: Any, segment: Segment, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self._session = session
        self._binding = session.io_binding()
        for tensor, array in zip(segment.inputs, inputs, strict=True):
            self._binding.bind_input(tensor.name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        for tensor, array in zip(segment.outputs, outputs, strict=True):
            self._binding.bind_output(tensor.name, "cpu", 0, np.float32, array.shape, array.ctypes.data)

    def run(self) -> None:
        try:
            self._session.run_with_iobinding(self._binding)
        except RUN_ERRORS as error:
            raise run_error(error) from error


class OrtExecutor:
    """The segments of a folder as onnxruntime sessions. See executor.Executor; takes any length."""

    def __init__(self, folder: HybridFolder, threads: int | None, progress: Progress) -> None:
        """Load all segments; `progress` is called from 0 to 1. Raises BackendError."""
        self._segments = folder.meta.segments
        self.runtime = f"onnxruntime {onnxruntime.__version__}"
        self.max_tokens = folder.meta.lengths[-1]
        self._buffers = Buffers(self.max_tokens)
        self._sessions: list[Any] = []
        threads = thread_count(threads)
        check_threads((threads - 1) * len(folder.builds))  # each session has a pool of its own
        options = _session_options(threads)
        for index, build in enumerate(folder.builds):
            progress(index / len(folder.builds), f"segment {index + 1} of {len(folder.builds)}")
            session = _load(folder.file(build.file), options, build.size_bytes + (build.data_size_bytes or 0))
            _compare(build.file, self._segments[index], session)
            self._sessions.append(session)

    def length_for(self, tokens: int) -> int:
        return min(tokens, self.max_tokens)

    def bind(self, length: int) -> Sequence[OrtCall]:
        arrays = self._buffers.chain(self._segments, length)
        return [
            OrtCall(session, segment, inputs, outputs)
            for session, segment, (inputs, outputs) in zip(
                self._sessions, self._segments, arrays, strict=True
            )
        ]

    def close(self) -> None:
        self._sessions.clear()


def _session_options(threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.log_severity_level = _ERRORS_ONLY
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _load(path: Path, options: Any, size_bytes: int) -> Any:
    """Open one graph; size_bytes: of it and its weights. Raises BackendError."""
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the library's errors have no common base but this
        raise load_error(error, path, size_bytes) from error


def _compare(file: str, segment: Segment, session: Any) -> None:
    """Check that a graph has the inputs and outputs meta2.json says it has."""
    for said, graphs in ((segment.inputs, session.get_inputs()), (segment.outputs, session.get_outputs())):
        expected = [(tensor.name, list(tensor.shape), "tensor(float)") for tensor in said]
        found = [(node.name, list(node.shape), node.type) for node in graphs]
        if expected != found:
            raise BackendError(
                "model_corrupt",
                f"{file} is not the graph meta2.json describes: it has {found} where {expected} is said. "
                "Pull or convert the model again.",
            )
