"""Segments on the NPU, on librknnrt by its C interface: nothing is copied but what is converted.

The engine's float32 becomes the NPU's float16 right in the memory the NPU reads, and the other way round. How
that memory lies is asked for each length at loading, never assumed.

A context has one shape at a time. Going over from prefill to decode costs a change of shape and new bindings
for each segment, once an answer; within either nothing but rknn_run is called.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.base import BackendError, EngineLost
from backends.engine import Progress
from backends.hybrid.buffers import Buffers
from backends.hybrid.cores import CORES
from backends.hybrid.executor import Array
from backends.hybrid.folder import HybridFolder
from backends.hybrid.kernels import NUMPY, Kernels
from backends.hybrid.meta import Segment, Tensor
from backends.rknn.context import Context, Memory
from backends.rknn.enums import RknnCoreMask, RknnQueryCmd
from backends.rknn.errors import ModelInvalid, RknnError
from backends.rknn.library import open_library
from backends.rknn.native import RowLayout, UnsupportedLayout, row_layout
from backends.rknn.structs import RknnTensorAttr
from backends.rknn.versions import check_said, newer_toolkit, version_in_file
from backends.spec import CoreMask

Half = npt.NDArray[np.float16]


@dataclass(frozen=True)
class _Shape:
    """A segment at one length. inputs: what rknn_set_input_shapes is given, None for a file of one shape."""

    inputs: Sequence[Sequence[int]] | None
    attributes: Sequence[RknnTensorAttr]
    layouts: Sequence[RowLayout]


class RknnCall:
    """One segment at one length. See executor.Call."""

    def __init__(
        self,
        segment: _LoadedSegment,
        length: int,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        kernels: Kernels,
    ) -> None:
        self._kernels = kernels
        self.inputs = inputs
        self.outputs = outputs
        self._segment = segment
        self._length = length
        native = segment.views(length, [array.shape for array in (*inputs, *outputs)])
        self._native_inputs, self._native_outputs = native[: len(inputs)], native[len(inputs) :]

    def run(self) -> None:
        """See executor.Call. Raises EngineLost: what state the NPU is in after a failure is not known."""
        self._segment.go_to(self._length)
        # Rows that fill a call up hold anything, and what overflows in them reaches no other row.
        for native, array in zip(self._native_inputs, self.inputs, strict=True):
            self._kernels.to_half(array, native)
        self._segment.run()
        for array, native in zip(self.outputs, self._native_outputs, strict=True):
            self._kernels.from_half(native, array)


class RknnExecutor:
    """A folder's segments as contexts of librknnrt. See executor.Executor; takes the lengths built."""

    def __init__(
        self,
        folder: HybridFolder,
        library: Path,
        progress: Progress,
        *,
        core_mask: CoreMask = "auto",
        wanted: str | None = None,
        kernels: Kernels = NUMPY,
    ) -> None:
        """Load all segments; `progress` is called from 0 to 1.

        wanted: which versions of the library the entry asks for. kernels: convert numbers. Raises
        BackendError; LibraryError where the library cannot be opened or lacks functions.
        """
        version = version_in_file(library, wanted)
        functions = open_library(library)
        self.runtime = f"librknnrt {version}"
        self.max_tokens = folder.meta.lengths[-1]
        self._lengths = folder.meta.lengths
        self._described = folder.meta.segments
        self._buffers = Buffers(self.max_tokens)
        self._kernels = kernels
        self._segments: list[_LoadedSegment] = []
        number, build = len(folder.builds), folder.builds[0]
        try:
            for index, (build, described) in enumerate(zip(folder.builds, self._described, strict=True)):
                progress(index / number, f"segment {index + 1} of {number}")
                segment = _LoadedSegment(functions, folder.file(build.file), CORES[core_mask])
                self._segments.append(segment)
                if index == 0:
                    check_said(library, version, segment.library_version())
                segment.prepare(described, self._lengths)
        except RknnError as error:
            self.close()
            if isinstance(error, ModelInvalid) and newer_toolkit(build.toolkit, version):
                raise BackendError(
                    "runtime_version_mismatch",
                    f"{error.message} It was built with rknn-toolkit2 {build.toolkit}, and {library} is "
                    f"older, {version}: rkserve runtime install FILE|URL puts a newer one there.",
                ) from error
            raise BackendError(error.code, error.message) from error
        except BaseException:
            self.close()
            raise

    def length_for(self, tokens: int) -> int:
        return next((length for length in self._lengths if length >= tokens), self.max_tokens)

    def bind(self, length: int) -> Sequence[RknnCall]:
        arrays = self._buffers.chain(self._described, length)
        return [
            RknnCall(segment, length, inputs, outputs, self._kernels)
            for segment, (inputs, outputs) in zip(self._segments, arrays, strict=True)
        ]

    def close(self) -> None:
        """See executor.Executor. May be called again."""
        while self._segments:
            self._segments.pop().close()


class _LoadedSegment:
    """A context with its memory. Owns both until `close`."""

    def __init__(self, functions: Any, path: Path, core_mask: RknnCoreMask) -> None:
        self._file = path.name
        self._context = Context(functions, path, core_mask)
        self._shapes: dict[int, _Shape] = {}
        self._memory: list[Memory] = []
        self._length: int | None = None  # what is bound, None: nothing

    def library_version(self) -> str:
        """Return what the library says of its version."""
        return self._context.versions()[0]

    def prepare(self, described: Segment, lengths: Sequence[int]) -> None:
        """Ask how inputs and outputs lie at each length; allocate them. Raises BackendError, RknnError."""
        context, tensors = self._context, [*described.inputs, *described.outputs]
        counts = (context.num_inputs, context.num_outputs)
        if counts != (len(described.inputs), len(described.outputs)):
            raise self._foreign(f"it has {counts[0]} inputs and {counts[1]} outputs")
        given = context.input_shapes()
        for length in lengths:
            self._shapes[length] = self._shape(described, tensors, length, given)
        for index in range(len(tensors)):
            largest = max(shape.layouts[index].size_bytes for shape in self._shapes.values())
            self._memory.append(context.allocate(largest))

    def views(self, length: int, shapes: Sequence[tuple[int, ...]]) -> list[Half]:
        """Return the memory of the inputs and then the outputs at a length, as rows. Valid until `close`."""
        found = []
        layouts = self._shapes[length].layouts
        for memory, layout, shape in zip(self._memory, layouts, shapes, strict=True):
            mapped = memoryview((ctypes.c_char * memory.size_bytes).from_address(memory.address))
            found.append(np.ndarray(shape, np.float16, mapped, strides=(2 * layout.stride, 2)))
        return found

    def go_to(self, length: int) -> None:
        """Set the shapes of a length, if it is another than at the last run, and bind. Raises EngineLost."""
        if self._length == length:
            return
        shape = self._shapes[length]
        self._length = None
        try:
            if shape.inputs is not None:
                self._context.set_input_shapes(shape.inputs)
            for memory, attribute in zip(self._memory, shape.attributes, strict=True):
                self._context.bind(memory, attribute)
        except RknnError as error:
            raise EngineLost(error.message) from error
        self._length = length

    def run(self) -> None:
        """Compute. Raises EngineLost."""
        try:
            self._context.run()
        except RknnError as error:
            raise EngineLost(error.message) from error

    def close(self) -> None:
        """Give back context and memory."""
        self._context.close()

    def _shape(
        self,
        described: Segment,
        tensors: Sequence[Tensor],
        length: int,
        given: Sequence[Sequence[Sequence[int]]],
    ) -> _Shape:
        inputs = _choose(given, [_rows(tensor, length) for tensor in described.inputs])
        if inputs is not None:
            self._context.set_input_shapes(inputs)
            commands = (
                RknnQueryCmd.CURRENT_NATIVE_INPUT_ATTR,
                RknnQueryCmd.CURRENT_NATIVE_OUTPUT_ATTR,
            )
        elif any(given):
            raise self._foreign(f"it was not built for calls of {length} tokens")
        else:
            commands = RknnQueryCmd.NATIVE_INPUT_ATTR, RknnQueryCmd.NATIVE_OUTPUT_ATTR
        attributes = [*self._context.inputs(commands[0]), *self._context.outputs(commands[1])]
        try:
            layouts = [
                row_layout(attribute, *_rows(tensor, length))
                for attribute, tensor in zip(attributes, tensors, strict=True)
            ]
        except UnsupportedLayout as error:
            raise self._foreign(f"at {length} tokens {error}") from error
        return _Shape(inputs, attributes, layouts)

    def _foreign(self, what: str) -> BackendError:
        return BackendError(
            "model_corrupt",
            f"{self._file} is not the segment meta2.json describes, or lies in the NPU's memory as this "
            f"engine does not take it: {what}. Build the folder's .rknn files again: rkserve convert rknn.",
        )


def _rows(tensor: Tensor, length: int) -> tuple[int, int]:
    rows, size = tensor.shape
    return length if rows == "T" else int(rows), int(size)


def _choose(
    given: Sequence[Sequence[Sequence[int]]], wanted: Sequence[tuple[int, int]]
) -> Sequence[Sequence[int]] | None:
    """Return the shapes of all inputs that are the wanted ones, whatever axes of size 1 they have."""
    for shapes in zip(*given, strict=False):
        pairs = zip(shapes, wanted, strict=True)
        if all(
            [dim for dim in shape if dim != 1] == [dim for dim in rows if dim != 1] for shape, rows in pairs
        ):
            return shapes
    return None
