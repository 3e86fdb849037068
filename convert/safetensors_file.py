"""Reads the weights of a Hugging Face checkpoint, one tensor at a time, as float32.

The format is read here rather than with the safetensors library, which maps whole files (their pages then
count as memory of the process) and has no numpy type for bfloat16. Source: the format's description in the
safetensors repository. Knows nothing of what the tensors mean.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from convert.errors import ConvertError
from convert.graphs import Array

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_LONGEST_HEADER = 100_000_000  # bytes, the format's own limit
_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies. offset: in its file. dtype: the format's name, as in "BF16"."""

    name: str
    path: Path
    offset: int
    size_bytes: int
    dtype: str
    shape: tuple[int, ...]


class Checkpoint:
    """The tensors of a checkpoint directory, by name. Files are open only while one is read."""

    def __init__(self, tensors: Mapping[str, StoredTensor], files: tuple[Path, ...]) -> None:
        self.tensors = tensors
        self.files = files

    def read(self, name: str) -> Array:
        """Return a tensor as float32; the caller owns it. Raises ConvertError, OSError.

        Takes the tensor's size as float32 and half as much again at most.
        """
        tensor = self.tensors[name]
        if tensor.dtype not in _ITEM_BYTES:
            raise ConvertError(
                f"The tensor {name} is stored as {tensor.dtype}, where float32, float16 or bfloat16 can be "
                "converted. Take the model's checkpoint that is not quantized."
            )
        kind = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[tensor.dtype]
        with tensor.path.open("rb") as file:
            file.seek(tensor.offset)
            data = np.fromfile(file, kind, math.prod(tensor.shape))
        if data.nbytes != tensor.size_bytes:
            raise _cut_off(tensor.path, f"the tensor {name}")
        if tensor.dtype == "BF16":
            wide = data.astype(np.uint32)  # a bfloat16 is the upper half of a float32
            np.left_shift(wide, 16, out=wide)
            return wide.view(np.float32).reshape(tensor.shape)
        return data.astype(np.float32, copy=False).reshape(tensor.shape)


def open_checkpoint(directory: Path) -> Checkpoint:
    """Read where the tensors lie. Raises ConvertError for what is missing or damaged, OSError."""
    single, index = directory / WEIGHTS_FILE, directory / INDEX_FILE
    if index.is_file():
        names = _index(index)
        files = tuple(directory / name for name in sorted(set(names.values())))
        if missing := [path.name for path in files if not path.is_file()]:
            raise ConvertError(
                f"{directory} lacks {', '.join(missing)}, which {INDEX_FILE} names: fetch the whole model."
            )
    elif single.is_file():
        names, files = {}, (single,)
    else:
        raise ConvertError(
            f"{directory} holds neither {WEIGHTS_FILE} nor {INDEX_FILE}. Give the directory of a "
            "Hugging Face "
            "checkpoint with safetensors; one of .bin files has to be saved again by its publisher."
        )
    tensors: dict[str, StoredTensor] = {}
    for path in files:
        for tensor in _header(path):
            if tensor.name in tensors:
                raise _damaged(path, f"holds {tensor.name}, which {tensors[tensor.name].path.name} holds too")
            tensors[tensor.name] = tensor
    for name, file in names.items():
        if name not in tensors or tensors[name].path.name != file:
            raise ConvertError(
                f"{INDEX_FILE} says that {file} holds {name}, but it does not: the files belong to different "
                "versions of the model. Fetch them all again."
            )
    return Checkpoint(tensors, files)


def _index(path: Path) -> dict[str, str]:
    try:
        names = json.loads(path.read_bytes())["weight_map"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _damaged(path, "has no weight_map") from None
    plain = isinstance(names, dict) and all(
        isinstance(file, str) and Path(file).name == file and file.endswith(".safetensors")
        for file in names.values()
    )
    if not plain or not names:
        raise _damaged(path, "has a weight_map that does not name files beside it")
    return dict(names)


def _header(path: Path) -> list[StoredTensor]:
    """Return the tensors of a file: 8 bytes with the header's length, the header as JSON, the data."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > _LONGEST_HEADER or 8 + length > size:
            raise ConvertError(
                f"{path} is no safetensors file, or is cut off in its header. A pointer of Git LFS "
                "looks so too: fetch the file itself."
            )
        data = file.read(length)
    try:
        header: Any = json.loads(data)
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        tensors = [_tensor(path, 8 + length, name, entry) for name, entry in entries.items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _damaged(path, "has a header that is not of this format") from None
    for tensor in tensors:
        if tensor.offset + tensor.size_bytes > size:
            raise _cut_off(path, f"the tensor {tensor.name}")
    return tensors


def _tensor(path: Path, start: int, name: str, entry: dict[str, Any]) -> StoredTensor:
    begin, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    dtype = str(entry["dtype"])
    if not all(type(number) is int and number >= 0 for number in (begin, end, *shape)) or end < begin:
        raise ValueError
    if dtype in _ITEM_BYTES and math.prod(shape) * _ITEM_BYTES[dtype] != end - begin:
        raise ValueError
    return StoredTensor(name, path, start + begin, end - begin, dtype, shape)


def _cut_off(path: Path, what: str) -> ConvertError:
    return ConvertError(
        f"{path} is cut off: {what} ends after the end of the file. Fetch it again and compare its "
        "sha256 with the publisher's."
    )


def _damaged(path: Path, how: str) -> ConvertError:
    return ConvertError(f"{path} is damaged: it {how}. Fetch it again from the publisher.")
