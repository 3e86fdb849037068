"""Single tokens computed by native kernels, longer calls by another executor.

What decode costs in onnxruntime is waking threads and going from operator to operator, some fifty of them in
a segment; one program for the whole segment has neither. Products of many rows are better done there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from backends.base import BackendError
from backends.hybrid.buffers import Buffers
from backends.hybrid.executor import Array, Call, Executor
from backends.hybrid.folder import HybridFolder
from backends.hybrid.kernels import Kernels
from backends.hybrid.meta import Build
from backends.hybrid.program import BrokenProgram, bind, by_name, read_program


class _NativeCall:
    """One segment for one token. See executor.Call."""

    def __init__(self, run: Callable[[], None], inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self.run = run
        self.inputs = inputs
        self.outputs = outputs


class NativeSegments:
    """See executor.Executor. Takes over the executor it is given, and closes it."""

    def __init__(self, folder: HybridFolder, others: Executor, kernels: Kernels) -> None:
        """Read the folder's programs and map their matrices. Raises BackendError, MemoryError."""
        self.runtime = others.runtime
        self.max_tokens = others.max_tokens
        self._others = others
        self._calls = _calls(folder, kernels)

    def length_for(self, tokens: int) -> int:
        return self._others.length_for(tokens)

    def bind(self, length: int) -> Sequence[Call]:
        return self._calls if length == 1 else self._others.bind(length)

    def close(self) -> None:
        self._calls = []
        self._others.close()


def with_native_segments(folder: HybridFolder, executor: Executor, kernels: Kernels) -> Executor:
    """Return an executor whose single tokens native kernels compute, where there are some and programs."""
    if not folder.programs or kernels.segment([]) is None:
        return executor
    return NativeSegments(folder, executor, kernels)


def _calls(folder: HybridFolder, kernels: Kernels) -> list[_NativeCall]:
    meta = folder.meta
    arrays = Buffers(1).chain(meta.segments, 1)
    table = _mapped(folder, meta.embedding.file.file)
    calls = []
    for build, segment, (inputs, outputs) in zip(folder.programs, meta.segments, arrays, strict=True):
        program = read_program(folder.file(build.file))
        data = table[:0] if build.data_file is None else _mapped(folder, build.data_file)
        try:
            steps = bind(
                program, by_name(segment.inputs, inputs), by_name(segment.outputs, outputs), data, table
            )
        except BrokenProgram as error:
            raise _broken(build, error) from error
        run = kernels.segment(steps)
        assert run is not None
        calls.append(_NativeCall(run, inputs, outputs))
    return calls


def _mapped(folder: HybridFolder, name: str) -> npt.NDArray[np.uint8]:
    try:
        mapped: npt.NDArray[np.uint8] = np.memmap(folder.file(name), np.uint8, "r")
    except (OSError, ValueError) as error:
        raise BackendError(
            "model_corrupt", f"{name} cannot be read ({error}). Pull or convert the model again."
        ) from error
    return mapped


def _broken(build: Build, error: BrokenProgram) -> BackendError:
    return BackendError(
        "model_corrupt",
        f"{build.file} does not describe its segment: {error}. Pull or convert the model again.",
    )
