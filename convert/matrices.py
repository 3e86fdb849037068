"""Weights as segments ask for them: some rows of one, times a factor, dense or as a file quantized them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from convert.graphs import Array
from convert.quantized import Quantized

Weights = Callable[[str], Array]
Blocks = Callable[[str], Quantized | None]


@dataclass(frozen=True)
class Part:
    """What a segment multiplies with. rows: which outputs of the weight, None: all."""

    name: str
    rows: slice | None = None
    factor: float = 1.0


class Matrices:
    """Gives weights one at a time and keeps none. blocks: None for those that the file does not quantize."""

    def __init__(self, weights: Weights, blocks: Blocks | None = None) -> None:
        self.vector = weights
        self._weights = weights
        self._blocks = blocks

    def dense(self, part: Part) -> Array:
        """Return a matrix, (out, in) float32."""
        weight = self._weights(part.name)
        if part.rows is not None:
            weight = weight[part.rows]
        return weight if part.factor == 1 else weight * np.float32(part.factor)

    def quantized(self, part: Part) -> Quantized | None:
        """Return a matrix in blocks, or None where the file has none of it."""
        found = None if self._blocks is None else self._blocks(part.name)
        if found is None:
            return None
        if part.rows is not None:
            found = found[part.rows]
        return found if part.factor == 1 else found.times(part.factor)
