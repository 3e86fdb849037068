"""How well two runs of a graph agree. Pure."""

from __future__ import annotations

import numpy as np

from backends.hybrid.executor import Array


def least_cosine(found: Array, expected: Array) -> float:
    """Return the least cosine of the rows of two arrays; a row of another shape or not finite counts as 0.

    By rows: the first token's are often so much larger than the others that they would hide them.
    """
    if found.shape != expected.shape:
        return 0.0
    one, other = (array.reshape(len(array), -1).astype(np.float64) for array in (found, expected))
    one = np.where(np.isfinite(one).all(axis=1, keepdims=True), one, 0)
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    both_zero = ~one.any(axis=1) & ~other.any(axis=1) & np.isfinite(found.reshape(len(found), -1)).all(axis=1)
    cosines = np.where(norms > 0, (one * other).sum(axis=1) / np.where(norms > 0, norms, 1), both_zero)
    return float(min(1.0, cosines.min()))
