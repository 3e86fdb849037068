"""From the last hidden states of a text to its vector. Pure.

Axes: T tokens, H hidden size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from backends.base import BackendError
from backends.spec import EmbeddingOptions

Rows = npt.NDArray[np.float32]


class Pool:
    """Takes the rows of one text, in order and in as many pieces as they come, and keeps what pooling needs.

    `rows`: how many have come.
    """

    def __init__(self, options: EmbeddingOptions) -> None:
        self._pooling = options.pooling
        self._kept: npt.NDArray[Any] | None = None
        self.rows = 0

    def take(self, rows: Rows) -> None:
        """Take further rows, (T, H), of which nothing is kept that is not copied."""
        if self._pooling == "mean":
            total = rows.sum(axis=0, dtype=np.float64)
            self._kept = total if self._kept is None else self._kept + total
        elif self._pooling == "last":
            self._kept = rows[-1].copy()
        elif self._kept is None:
            self._kept = rows[0].copy()
        self.rows += len(rows)

    def vector(self) -> npt.NDArray[np.float64] | None:
        """Return what the rows come to, (H,), None where there were none."""
        if self._kept is None:
            return None
        kept = self._kept.astype(np.float64)
        return kept / self.rows if self._pooling == "mean" else kept


def check_dimensions(model_id: str, options: EmbeddingOptions, dimensions: int | None, size: int) -> None:
    """Raise BackendError unless vectors of `size` may be had with so many dimensions."""
    if dimensions is None or dimensions == size:
        return
    if dimensions > size:
        raise BackendError(
            "invalid_request",
            f"dimensions is {dimensions}, and the vectors of {model_id} have {size}.",
            "dimensions",
        )
    if not options.matryoshka:
        raise BackendError(
            "unsupported_parameter",
            f"dimensions: {model_id} was not trained for shorter vectors than its {size} dimensions; leave "
            "it out.",
            "dimensions",
        )


def finished(
    vector: npt.NDArray[np.float64], options: EmbeddingOptions, dimensions: int | None
) -> npt.NDArray[np.float32] | None:
    """Return the vector as clients get it: cut to `dimensions`, of length 1 where that is asked for.

    None for one that means nothing: with a NaN or an infinity, or all zeros.
    """
    vector = vector[:dimensions]
    length = float(np.linalg.norm(vector))
    if not np.isfinite(length) or length == 0:
        return None
    result = (vector / length if options.normalize else vector).astype(np.float32)
    return result if np.isfinite(result).all() and result.any() else None
