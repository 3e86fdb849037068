"""The few weights that are no part of a graph: the embedding table and the norms of q and k.

Axes: V vocabulary, D hidden size.
"""

from __future__ import annotations

import errno
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.base import BackendError
from backends.hybrid.folder import HybridFolder
from backends.hybrid.meta import File

Array = npt.NDArray[np.float32]


def open_embedding(folder: HybridFolder) -> npt.NDArray[np.floating]:
    """Map the table, (V, D): only rows that are looked up come into memory. Raises BackendError."""
    meta = folder.meta
    shape = (meta.vocab_size, meta.hidden_size)
    return _open(folder, meta.embedding.file.file, shape, meta.embedding.dtype)


def read_norm(folder: HybridFolder, file: File | None) -> Array | None:
    """Read a norm weight, (head_dim,), if there is one. Raises BackendError."""
    if file is None:
        return None
    return np.array(_open(folder, file.file, (folder.meta.head_dim,), "float32"))


def _open(folder: HybridFolder, name: str, shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    try:
        array: npt.NDArray[Any] = np.lib.format.open_memmap(folder.file(name), mode="r")
    except MemoryError:
        raise
    except Exception as error:  # of a damaged header numpy passes on whatever Python's parser raises
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            raise MemoryError(name) from error
        said = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
        raise BackendError(
            "model_corrupt", f"{name} cannot be read{said}. Pull or convert the model again."
        ) from error
    if array.shape != shape or array.dtype != np.dtype(dtype):
        raise BackendError(
            "model_corrupt",
            f"{name} holds {array.dtype} of shape {array.shape} where {dtype} of shape {shape} is needed. "
            "Pull or convert the model again.",
        )
    return array
