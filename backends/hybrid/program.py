"""A segment as native kernels compute it for one token: steps over vectors, with matrices in few bits.

The file is JSON; the matrices lie in the data file that the ONNX graph of the same variant reads, too. Each
step gives one vector that later ones and the engine may read. Holds no kernels.

Axes: N outputs, K inputs, B = K / 32 blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from backends.base import BackendError
from backends.hybrid.executor import Array
from backends.hybrid.meta import Tensor

PROGRAM_VERSION: Final = 1
BLOCK: Final = 32

Step = tuple[Any, ...]  # what Kernels.segment takes: the operator's name, arrays and numbers


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Matrix(_Part, frozen=True):
    """Where a matrix lies: `rows` outputs from `first` on, of one of `outputs`; bytes from the file's start.

    bits 4 or 8: values (outputs, B, 4 * bits) uint8, scales (outputs, B) float32, and offsets, of which there
    may be none, (B, outputs) float32: a weight is scale * (value - 2^(bits - 1)) + offset, two values of 4
    bits in a byte with the first in the lower half. bits 32: values (K, outputs) float32. in_table: the
    values are the embedding's, (outputs, K) float32 in its file, from there on.
    """

    bits: Literal[4, 8, 32]
    outputs: int
    inputs: int
    first: int
    rows: int
    values: int
    scales: int | None = None
    offsets: int | None = None
    in_table: bool = False


class Norm(_Part, frozen=True, tag="norm", tag_field="op"):
    """out = x / sqrt(mean(x^2) + eps) * weight."""

    out: str
    x: str
    weight: list[float]
    eps: float


class Product(_Part, frozen=True, tag="product", tag_field="op"):
    """out = matrix x."""

    out: str
    x: str
    matrix: Matrix


class Pair(_Part, frozen=True, tag_field="op"):
    """An operator on two vectors of one size, element by element."""

    out: str
    x: str
    y: str


class Add(Pair, frozen=True, tag="add"):
    """out = x + y."""


class Multiply(Pair, frozen=True, tag="multiply"):
    """out = x * y."""


class Activation(_Part, frozen=True, tag_field="op"):
    """A function of each element."""

    out: str
    x: str


class Silu(Activation, frozen=True, tag="silu"):
    """out = x * sigmoid(x)."""


class Gelu(Activation, frozen=True, tag="gelu"):
    """out = GELU(x) by tanh."""


class Conv(_Part, frozen=True, tag="conv", tag_field="op"):
    """out = sum over taps of kernel[:, tap] times a row: those of state, (taps - 1, size), then x.

    kernel: (size, taps), the last tap is x's.
    """

    out: str
    state: str
    x: str
    kernel: list[list[float]]


AnyStep = Norm | Product | Add | Multiply | Silu | Gelu | Conv


class Program(_Part, frozen=True):
    """The whole file."""

    version: Literal[1]
    steps: list[AnyStep]


class BrokenProgram(Exception):
    """A program that does not fit together; the message says where."""


def read_program(path: Path) -> Program:
    """Read a program. Raises BackendError(model_corrupt)."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Program)
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise BackendError(
            "model_corrupt", f"{path} is no program of a segment ({error}). Pull or convert the model again."
        ) from error


def bind(
    program: Program,
    inputs: Mapping[str, Array],
    outputs: Mapping[str, Array],
    data: npt.NDArray[np.uint8],
    table: npt.NDArray[np.uint8],
) -> list[Step]:
    """Return the steps over these vectors, with arrays for what lies between them.

    inputs, outputs: by name, one row each (a conv state has more). data, table: the data file's and the
    embedding file's bytes, which the steps read and must stay. Raises BrokenProgram.
    """
    known = dict(inputs)
    steps: list[Step] = []
    for number, step in enumerate(program.steps):
        size = _size(step, known, f"step {number}")
        if step.out in known:
            raise BrokenProgram(f"step {number} gives {step.out} again")
        operands = _operands(step, known, data, table)
        out = outputs[step.out].reshape(-1) if step.out in outputs else np.empty(size, np.float32)
        if out.size != size:
            raise BrokenProgram(f"step {number} gives {step.out} {size} values, and {out.size} are wanted")
        steps.append((*operands, out))
        known[step.out] = out
    if missing := outputs.keys() - known.keys():
        raise BrokenProgram(f"no step gives {', '.join(sorted(missing))}")
    return steps


def by_name(tensors: Sequence[Tensor], arrays: Sequence[Array]) -> dict[str, Array]:
    """Return arrays by the names of their tensors."""
    return {tensor.name: array for tensor, array in zip(tensors, arrays, strict=True)}


def _size(step: AnyStep, known: Mapping[str, Array], where: str) -> int:
    """Return the size of what a step gives; check that what it reads is there and fits."""
    sources = [step.x, *([step.y] if isinstance(step, Pair) else [])]
    sources += [step.state] if isinstance(step, Conv) else []
    for name in sources:
        if name not in known:
            raise BrokenProgram(f"{where} reads {name}, which nothing gave before")
    size = known[step.x].size
    match step:
        case Norm(weight=weight):
            fits = len(weight) == size
        case Product(matrix=matrix):
            fits, size = matrix.inputs == size, matrix.rows
        case Pair(y=y):
            fits = known[y].size == size
        case Conv(state=state, kernel=kernel):
            taps = 1 + known[state].size // size
            fits = known[state].size % size == 0 and len(kernel) == size
            fits = fits and all(len(row) == taps for row in kernel)
        case _:
            fits = True
    if not fits:
        raise BrokenProgram(f"{where}, which gives {step.out}, does not fit what it reads")
    return size


def _operands(
    step: AnyStep, known: Mapping[str, Array], data: npt.NDArray[np.uint8], table: npt.NDArray[np.uint8]
) -> Step:
    """Return a step as kernels take it, but for its result. Raises BrokenProgram before anything is made."""
    x = known[step.x].reshape(-1)
    match step:
        case Norm():
            return ("norm", x, np.array(step.weight, np.float32), step.eps)
        case Product():
            return ("product", x, *_matrix(step.matrix, table if step.matrix.in_table else data))
        case Conv():
            kernel = np.ascontiguousarray(np.array(step.kernel, np.float32).T)
            return ("conv", known[step.state].reshape(-1), x, kernel)
        case Pair():
            return ("add" if isinstance(step, Add) else "multiply", x, known[step.y].reshape(-1))
        case Silu():
            return ("silu", x)
        case Gelu():
            return ("gelu", x)


def _matrix(matrix: Matrix, data: npt.NDArray[np.uint8]) -> tuple[Any, ...]:
    """Return (bits, values, scales, offsets) of the rows that are wanted; offsets (rows, B) or None."""
    outputs, inputs, bits = matrix.outputs, matrix.inputs, matrix.bits
    rows = slice(matrix.first, matrix.first + matrix.rows)
    if matrix.first < 0 or matrix.rows < 1 or rows.stop > outputs:
        raise BrokenProgram(f"rows {rows.start} to {rows.stop} of a matrix of {outputs}")
    if bits == 32:
        whole = _floats(data, matrix.values, outputs * inputs)
        dense = whole.reshape(outputs, inputs) if matrix.in_table else whole.reshape(inputs, outputs).T
        return (bits, np.ascontiguousarray(dense[rows]), None, None)
    if inputs % BLOCK or matrix.scales is None:
        raise BrokenProgram(f"a matrix of {inputs} inputs in blocks of {BLOCK}")
    blocks = inputs // BLOCK
    size = outputs * blocks * bits * BLOCK // 8
    values = _bytes(data, matrix.values, size).reshape(outputs, -1)
    scales = _floats(data, matrix.scales, outputs * blocks).reshape(outputs, blocks)
    offsets = None
    if matrix.offsets is not None:
        whole = _floats(data, matrix.offsets, outputs * blocks).reshape(blocks, outputs)
        offsets = np.ascontiguousarray(whole[:, rows].T)
    return (bits, values[rows], scales[rows], offsets)


def _bytes(data: npt.NDArray[np.uint8], start: int, count: int) -> npt.NDArray[np.uint8]:
    if start < 0 or start + count > len(data):
        raise BrokenProgram(f"a matrix from byte {start} to {start + count}, of {len(data)}")
    return data[start : start + count]


def _floats(data: npt.NDArray[np.uint8], start: int, count: int) -> Array:
    if start % 4:
        raise BrokenProgram(f"numbers from byte {start} on")
    return _bytes(data, start, 4 * count).view("<f4")
