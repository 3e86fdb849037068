"""Memory for what goes into segments and comes out of them, used again by all of a model's segments.

Knows the description of tensors, nothing of runtimes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from backends.hybrid.executor import Array
from backends.hybrid.meta import Role, Segment, Tensor


class Buffers:
    """One buffer for each role and size, shared by all segments, since these run one after another."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._arrays: dict[tuple[Role, int, int, int], Array] = {}

    def chain(self, segments: Sequence[Segment], length: int) -> Iterator[tuple[list[Array], list[Array]]]:
        """Yield inputs and outputs of each segment, so that one's stream is where the next takes it from.

        It goes back and forth between two buffers: a graph cannot write what it reads.
        """
        stream = 0
        for segment in segments:
            inputs = self.views(segment.inputs, length, stream)
            stream ^= any(tensor.role == "hidden" for tensor in segment.outputs)
            yield inputs, self.views(segment.outputs, length, stream)

    def views(self, tensors: Sequence[Tensor], length: int, stream: int) -> list[Array]:
        """Return the first rows of each tensor's buffer, C-contiguous: (length, size).

        Tensors of one role in one segment, those of conv layers, have buffers of their own.
        """
        roles: list[Role] = []
        found = []
        for tensor in tensors:
            found.append(self._view(tensor, length, stream, roles.count(tensor.role)))
            roles.append(tensor.role)
        return found

    def _view(self, tensor: Tensor, length: int, stream: int, ordinal: int) -> Array:
        rows, size = tensor.shape[0], int(tensor.shape[-1])
        fixed = 0 if rows == "T" else int(rows)
        key = (tensor.role, size, fixed, stream if tensor.role == "hidden" else ordinal)
        if key not in self._arrays:
            self._arrays[key] = np.zeros((fixed or self._max_tokens, size), np.float32)
        return self._arrays[key][: fixed or length]
