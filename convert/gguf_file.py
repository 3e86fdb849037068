"""Reads a GGUF file (versions 2 and 3, little endian): its metadata, and one tensor at a time as float32.

The header is read here rather than with gguf.GGUFReader, which maps the file and answers a truncated one
with whatever exception numpy happens to raise. Sizes and dequantization of the tensor types are the gguf
package's. Knows nothing of what the keys and tensors mean.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from convert.errors import ConvertError
from convert.files import check_no_stream
from convert.graphs import Array
from convert.quantized import TYPES as QUANTIZED_TYPES
from convert.quantized import Quantized, from_ggml

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

Value = bool | int | float | str | list["Value"]

_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies. shape: outermost axis first, as in numpy; type: the number of the ggml type."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int

    @property
    def type_name(self) -> str:
        """The name of the ggml type, as in "Q4_1"."""
        known = {member.value: member.name for member in GGMLQuantizationType}
        return known.get(self.type, f"type {self.type}")

    @property
    def size_bytes(self) -> int:
        """Bytes in the file. Raises ConvertError for a type or a row length that cannot be."""
        if self.type not in {member.value for member in GGMLQuantizationType}:
            raise ConvertError(
                f"The tensor {self.name} is of the ggml type {self.type}, which the installed gguf package "
                "does not know. Update it (pip install -U gguf), or take a Q4_1 or Q8_0 file of the model."
            )
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType(self.type)]
        if self.shape[-1] % block:
            raise ConvertError(
                f"The tensor {self.name} has rows of {self.shape[-1]} values, {self.type_name} needs a "
                f"multiple of {block}: the file is damaged. Fetch it again."
            )
        return math.prod(self.shape) // block * size


_MOST_NESTED = 4  # no key of the GGUF specification has arrays in arrays at all


class GgufFile:
    """An open GGUF file. A context manager; one thread at a time.

    Raises ConvertError on opening for a file that is no GGUF, is cut off or contradicts itself; OSError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        check_no_stream(path)
        self._file: BinaryIO = path.open("rb")
        try:
            self._size = path.stat().st_size
            self.metadata: dict[str, Value] = {}
            self.tensors: dict[str, TensorInfo] = {}
            self._read_header()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def read(self, name: str) -> Array:
        """Return a tensor as float32, dequantized; the caller owns it. Raises ConvertError, OSError."""
        tensor = self.tensors[name]
        kind = GGMLQuantizationType(tensor.type)
        self._file.seek(tensor.offset)
        data = np.frombuffer(self._take(tensor.size_bytes, f"the tensor {name}"), np.uint8)
        if kind == GGMLQuantizationType.F32:
            return data.view("<f4").astype(np.float32).reshape(tensor.shape)
        if kind == GGMLQuantizationType.F16:
            return data.view("<f2").astype(np.float32).reshape(tensor.shape)
        try:
            values = dequantize(data.reshape(*tensor.shape[:-1], -1), kind)
        except NotImplementedError:  # what gguf raises for kinds that it cannot dequantize
            raise ConvertError(
                f"The tensor {name} is stored as {tensor.type_name}, which the gguf package cannot read. "
                "Take a Q4_1, Q8_0 or F16 file of the same model."
            ) from None
        return np.asarray(values, np.float32).reshape(tensor.shape)

    def read_quantized(self, name: str) -> Quantized | None:
        """Return a matrix in blocks of 4 or 8 bits, if the file keeps it so. Raises ConvertError, OSError."""
        tensor = self.tensors[name]
        if tensor.type_name not in QUANTIZED_TYPES or len(tensor.shape) != 2:
            return None
        self._file.seek(tensor.offset)
        data = np.frombuffer(self._take(tensor.size_bytes, f"the tensor {name}"), np.uint8)
        return from_ggml(tensor.type_name, data, (tensor.shape[0], tensor.shape[1]))

    def _read_header(self) -> None:
        if self._file.read(4) != MAGIC:
            raise ConvertError(
                f"{self.path} is not a GGUF file: it does not begin with the letters GGUF. "
                "Give the .gguf file itself, not a web page, an archive or a pointer to it."
            )
        version = self._number("<I")
        if version not in VERSIONS:
            raise ConvertError(
                f"{self.path} is GGUF version {version}; only little-endian versions 2 and 3 can be read. "
                "Fetch a newer conversion of the model."
            )
        tensor_count, key_count = self._number("<Q"), self._number("<Q")
        for _ in range(key_count):
            key = self._string()
            if key in self.metadata:
                raise self._damaged(f"has the key {key} twice")
            self.metadata[key] = self._value(self._number("<I"))
        infos = [self._tensor_info() for _ in range(tensor_count)]
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0:
            raise self._damaged(f"gives the alignment as {alignment!r}")
        start = self._file.tell()
        start += -start % alignment
        for info in infos:
            tensor = TensorInfo(info.name, info.shape, info.type, start + info.offset)
            end = tensor.offset + tensor.size_bytes
            if end > self._size:
                raise ConvertError(
                    f"{self.path} is cut off: the tensor {tensor.name} ends at byte {end}, the file has "
                    f"{self._size}. Fetch it again and compare its sha256 with the publisher's."
                )
            if tensor.name in self.tensors:
                raise self._damaged(f"has the tensor {tensor.name} twice")
            self.tensors[tensor.name] = tensor

    def _tensor_info(self) -> TensorInfo:
        name = self._string()
        axes = self._number("<I")
        shape = tuple(self._number("<Q") for _ in range(axes))[::-1]  # GGUF names the innermost axis first
        kind, offset = self._number("<I"), self._number("<Q")
        if not shape or not all(shape):
            raise self._damaged(f"gives the tensor {name} the shape {shape}")
        return TensorInfo(name, shape, kind, offset)

    def _value(self, kind: int, depth: int = 0) -> Value:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            item, count = self._number("<I"), self._number("<Q")
            if depth > _MOST_NESTED:
                raise self._damaged("has arrays in arrays without end")
            if item not in _SCALARS:
                return [self._value(item, depth + 1) for _ in range(count)]
            layout = np.dtype(_SCALARS[item])
            data = self._take(count * layout.itemsize, "an array")
            items: list[Value] = np.frombuffer(data, layout).tolist()
            return items
        if kind in _SCALARS:
            (value,) = struct.unpack(_SCALARS[kind], self._take(struct.calcsize(_SCALARS[kind]), "a value"))
            scalar: Value = value
            return scalar
        raise self._damaged(f"has a value of the unknown type {kind}")

    def _number(self, layout: str) -> int:
        (value,) = struct.unpack(layout, self._take(struct.calcsize(layout), "a number"))
        number: int = value
        return number

    def _string(self) -> str:
        data = self._take(self._number("<Q"), "a text")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self._damaged("has a text that is not UTF-8") from None

    def _take(self, count: int, what: str) -> bytes:
        if count > self._size - self._file.tell():  # asked first: a damaged length must not allocate memory
            raise ConvertError(
                f"{self.path} is cut off or damaged: {what} would end after the end of the file "
                f"({self._size} bytes). Fetch it again and compare its sha256 with the publisher's."
            )
        return self._file.read(count)

    def _damaged(self, how: str) -> ConvertError:
        return ConvertError(
            f"{self.path} is damaged: it {how}. Fetch it again and compare its sha256 with the publisher's."
        )
