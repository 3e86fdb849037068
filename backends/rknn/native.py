"""How the rows of a tensor lie in the NPU's memory, by the attributes the library gives. Pure.

Only plain rows of float16 are taken: those can be written and read in place. What pads them is obeyed.
"""

from __future__ import annotations

from dataclasses import dataclass

from backends.rknn.enums import RknnTensorFormat, RknnTensorQntType, RknnTensorType
from backends.rknn.structs import MAX_DIMS, RknnTensorAttr

_ELEMENT_BYTES = 2  # float16


class UnsupportedLayout(Exception):
    """A tensor that does not lie in rows of float16; the message says how it lies."""


@dataclass(frozen=True)
class RowLayout:
    """stride: elements from the beginning of a row to that of the next. size_bytes: of all, with padding."""

    stride: int
    size_bytes: int


def row_layout(attribute: RknnTensorAttr, rows: int, size: int) -> RowLayout:
    """Return how a tensor of (rows, size) lies. Raises UnsupportedLayout.

    The axes of size 1 do not matter. w_stride counts steps of the axis W, the last one of NCHW and of what
    has no format, the last but one of NHWC; h_stride rows of it. 0: packed.
    """
    tensor_type, tensor_format = int(attribute.type), int(attribute.fmt)
    if tensor_type != RknnTensorType.FLOAT16:
        raise _unsupported(attribute, f"of type {_name(RknnTensorType, tensor_type)}, not FLOAT16")
    if attribute.qnt_type != RknnTensorQntType.NONE:
        raise _unsupported(attribute, "quantized")
    if tensor_format not in (RknnTensorFormat.NCHW, RknnTensorFormat.NHWC, RknnTensorFormat.UNDEFINED):
        raise _unsupported(attribute, f"in the layout {_name(RknnTensorFormat, tensor_format)}")
    if not 1 <= attribute.n_dims <= MAX_DIMS:
        raise _unsupported(attribute, f"of {attribute.n_dims} dimensions")
    dims = list(attribute.dims[: attribute.n_dims])
    strides = _strides(attribute, dims, width=-2 if _has_channels_last(tensor_format, dims) else -1)
    found = [(dim, stride) for dim, stride in zip(dims, strides, strict=True) if dim != 1]
    if [dim for dim, _ in found] != [dim for dim in (rows, size) if dim != 1]:
        raise _unsupported(attribute, f"of shape {dims}, where {[rows, size]} is right")
    if size != 1 and found[-1][1] != 1:
        raise _unsupported(attribute, f"with {found[-1][1]} elements from one value of a row to the next")
    stride = found[0][1] if rows != 1 else size
    needed = _ELEMENT_BYTES * ((rows - 1) * stride + size)
    given = int(attribute.size_with_stride or attribute.size)
    if given < needed:
        raise _unsupported(attribute, f"of {given} bytes, where its strides need {needed}")
    return RowLayout(stride, given)


def _has_channels_last(tensor_format: int, dims: list[int]) -> bool:
    return tensor_format == RknnTensorFormat.NHWC and len(dims) > 2


def _strides(attribute: RknnTensorAttr, dims: list[int], width: int) -> list[int]:
    """Return the elements from one value to the next along each axis. width: the place of the axis W."""
    padded = list(dims)
    for place, stride in ((width, attribute.w_stride), (width - 1, attribute.h_stride)):
        if stride and len(dims) >= -place:
            if stride < dims[place]:
                raise _unsupported(attribute, f"of shape {dims} with a stride of {stride}")
            padded[place] = stride
    strides = [1] * len(dims)
    for axis in range(len(dims) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * padded[axis + 1]
    return strides


def _name(kind: type[RknnTensorType] | type[RknnTensorFormat], value: int) -> str:
    return kind(value).name if value in list(kind) else str(value)


def _unsupported(attribute: RknnTensorAttr, what: str) -> UnsupportedLayout:
    return UnsupportedLayout(f"{attribute.name.decode('utf-8', 'replace')} is {what}")
