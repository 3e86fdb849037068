"""One context of librknnrt: a loaded .rknn file, its memory, and the one destroy.

Knows no model's meaning and no numpy. The library's conventions end here: return codes, null pointers, who
frees what. Used from one thread.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.rknn.enums import RknnQueryCmd
from backends.rknn.errors import OutOfMemory, ParameterInvalid, RknnFailed, check
from backends.rknn.structs import (
    MAX_DIMS,
    RknnContext,
    RknnInputOutputNum,
    RknnInputRange,
    RknnSdkVersion,
    RknnTensorAttr,
)

_MALLOC_FAIL = -4


@dataclass(frozen=True)
class Memory:
    """Memory that the NPU reads and writes, mapped at `address`. Of its context, which frees it."""

    pointer: Any
    address: int
    size_bytes: int


class Context:
    """A loaded file. Owns the context and all memory that was allocated in it, until `close`."""

    def __init__(self, functions: Any, path: Path, core_mask: int) -> None:
        """Load a file and place it on cores. functions: of library.open_library. Raises RknnError."""
        self._functions = functions
        self._subject = path.name
        self._handle: Any = None
        self._memory: list[Memory] = []
        handle = RknnContext()
        # A size of 0: the pointer is a path. The library copies it.
        status = functions.rknn_init(ctypes.byref(handle), os.fsencode(path), 0, 0, None)
        check("rknn_init", status, self._subject)
        self._handle = handle
        try:
            self._call("rknn_set_core_mask", core_mask)
            counts = RknnInputOutputNum()
            self._query(RknnQueryCmd.IN_OUT_NUM, counts)
            self.num_inputs: int = counts.n_input
            self.num_outputs: int = counts.n_output
        except BaseException:
            self.close()
            raise

    def versions(self) -> tuple[str, str]:
        """Return what the library and the driver say of their versions. Raises RknnError."""
        said = RknnSdkVersion()
        self._query(RknnQueryCmd.SDK_VERSION, said)
        return _text(said.api_version), _text(said.drv_version)

    def inputs(self, command: RknnQueryCmd) -> list[RknnTensorAttr]:
        """Return the attributes of all inputs, of the kind the command asks for. Raises RknnError."""
        return [self._attributes(command, index) for index in range(self.num_inputs)]

    def outputs(self, command: RknnQueryCmd) -> list[RknnTensorAttr]:
        """Return the attributes of all outputs, of the kind the command asks for. Raises RknnError."""
        return [self._attributes(command, index) for index in range(self.num_outputs)]

    def input_shapes(self) -> list[list[tuple[int, ...]]]:
        """Return the shapes each input can be given; none for a file without dynamic shapes.

        The shapes of one place in these lists belong together. Raises RknnError.
        """
        found = []
        for index in range(self.num_inputs):
            given = RknnInputRange(index=index)
            try:
                self._query(RknnQueryCmd.INPUT_DYNAMIC_RANGE, given)
            except (RknnFailed, ParameterInvalid):  # a file of one shape may be answered so
                given = RknnInputRange()
            dims = min(given.n_dims, MAX_DIMS)
            number = min(given.shape_number, len(given.dyn_range))
            found.append([tuple(given.dyn_range[shape][:dims]) for shape in range(number)])
        return found

    def set_input_shapes(self, shapes: Sequence[Sequence[int]]) -> None:
        """Choose a shape for each input; all memory must be bound again after it. Raises RknnError."""
        attributes = (RknnTensorAttr * len(shapes))(*self.inputs(RknnQueryCmd.INPUT_ATTR))
        for attribute, shape in zip(attributes, shapes, strict=True):
            attribute.n_dims = len(shape)
            attribute.dims[: len(shape)] = shape
        self._call("rknn_set_input_shapes", len(shapes), attributes)

    def allocate(self, size_bytes: int) -> Memory:
        """Return new memory for an input or output. Raises OutOfMemory."""
        pointer = self._functions.rknn_create_mem(self._handle, size_bytes)
        if not pointer:
            raise OutOfMemory("rknn_create_mem", _MALLOC_FAIL, f"{size_bytes} bytes of {self._subject}")
        memory = Memory(pointer, pointer.contents.virt_addr or 0, pointer.contents.size)
        self._memory.append(memory)
        if not memory.address or memory.size_bytes < size_bytes:
            raise OutOfMemory("rknn_create_mem", _MALLOC_FAIL, f"{size_bytes} bytes of {self._subject}")
        return memory

    def bind(self, memory: Memory, attribute: RknnTensorAttr) -> None:
        """Have an input or output lie in this memory, just as its native attributes say. Raises RknnError."""
        attribute.pass_through = 1
        self._call("rknn_set_io_mem", memory.pointer, ctypes.byref(attribute))

    def run(self) -> None:
        """Compute the outputs; returns when they are there. Raises RknnError."""
        self._call("rknn_run", None)

    def close(self) -> None:
        """Give back the memory and the context. May be called again; nothing else may."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        # Whatever these return, nothing more can be done about it.
        while self._memory:
            self._functions.rknn_destroy_mem(handle, self._memory.pop().pointer)
        self._functions.rknn_destroy(handle)

    def _attributes(self, command: RknnQueryCmd, index: int) -> RknnTensorAttr:
        attribute = RknnTensorAttr(index=index)
        self._query(command, attribute)
        return attribute

    def _query(self, command: RknnQueryCmd, answer: ctypes.Structure) -> None:
        status = self._functions.rknn_query(
            self._handle, command, ctypes.byref(answer), ctypes.sizeof(answer)
        )
        check(f"rknn_query({command.name})", status, self._subject)

    def _call(self, function: str, *arguments: Any) -> None:
        check(function, getattr(self._functions, function)(self._handle, *arguments), self._subject)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
