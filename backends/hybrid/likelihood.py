"""What choosing a token does to the whole vocabulary, in numpy. Axis: V vocabulary."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


def weights(logits: Array, temperature: float) -> npt.NDArray[np.float64]:
    """Return probabilities relative to that of the most likely token, whose weight is 1, (V,)."""
    scaled = logits.astype(np.float64)
    scaled -= scaled.max()
    scaled /= temperature
    return np.exp(scaled)


def largest(values: npt.NDArray[np.floating], count: int) -> Ids:
    """Return the indices of the `count` largest values, largest first, the lower index among equals."""
    if count == 0:
        return np.empty(0, np.int64)
    if count < len(values):
        least = np.partition(values, len(values) - count)[len(values) - count]
        above, equal = np.flatnonzero(values > least), np.flatnonzero(values == least)
        ids = np.concatenate([above, equal[: count - len(above)]])
    else:
        ids = np.arange(len(values))
    return ids[np.argsort(-values[ids], kind="stable")]
