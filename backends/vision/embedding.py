"""An encoder's outputs as the language model takes them, and a cache of them. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Embedding = npt.NDArray[np.float32]
"""Of one image: (tokens, floats a token), C-contiguous."""


class UnusableOutputs(ValueError):
    """Outputs that are no embeddings of image tokens; the message says why."""


def interleaved(outputs: Sequence[npt.NDArray[Any]]) -> Embedding:
    """Return outputs as one embedding, in memory of its own. Raises UnusableOutputs.

    As the vendor's demo reads them: the first dimension of output 0 that is above 1 is the tokens, the next
    one the width; of several outputs, each token's rows follow each other.
    """
    shape = outputs[0].shape
    dims = [axis for axis, length in enumerate(shape) if length > 1]
    if not dims or dims[0] + 1 >= len(shape):
        raise UnusableOutputs(f"output 0 of shape {shape} has no two dimensions for tokens and their width")
    tokens, width = shape[dims[0]], shape[dims[0] + 1]
    for index, output in enumerate(outputs):
        if output.size != tokens * width:
            raise UnusableOutputs(
                f"output {index} of shape {output.shape} does not hold {tokens} tokens of {width} numbers"
            )
        if output.dtype.kind != "f":
            raise UnusableOutputs(f"output {index} holds {output.dtype} and not floating-point numbers")
    rows = [output.reshape(tokens, width).astype(np.float32, copy=False) for output in outputs]
    return np.concatenate(rows, axis=1)


class EmbeddingCache:
    """Keeps the embeddings used last, at most `capacity` of them."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._kept: OrderedDict[tuple[str, bytes], Embedding] = OrderedDict()

    def get(self, key: tuple[str, bytes]) -> Embedding | None:
        """Return what is kept under a key and count it as used."""
        embedding = self._kept.get(key)
        if embedding is not None:
            self._kept.move_to_end(key)
        return embedding

    def put(self, key: tuple[str, bytes], embedding: Embedding) -> None:
        """Keep an embedding; the one not used for longest may go for it."""
        self._kept[key] = embedding
        self._kept.move_to_end(key)
        while len(self._kept) > self._capacity:
            self._kept.popitem(last=False)
