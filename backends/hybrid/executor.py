"""What runs segments: the seam between the engine and onnxruntime or the NPU's runtimes.

An executor knows graphs and buffers; tokens, layers, caches and positions are the engine's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


class Call(Protocol):
    """One segment at one length, bound to memory of the executor's.

    inputs and outputs stand in the order of meta2.json; the first axis of each is the length. The hidden
    stream a segment gives is in the memory from which the next segment of the same length takes it. All else
    may be shared with other segments and lengths: it is valid until the next `run` of any call.
    """

    @property
    def inputs(self) -> Sequence[Array]:
        """What the segment reads; to be written before `run`."""

    @property
    def outputs(self) -> Sequence[Array]:
        """What `run` writes. The caller may change it."""

    def run(self) -> None:
        """Compute the outputs. Raises BackendError (EngineLost where only a new process helps).

        The outputs are undefined then.
        """


class Executor(Protocol):
    """All segments of a model, loaded. Used from one thread."""

    @property
    def runtime(self) -> str:
        """Name and version, as in "onnxruntime 1.32.0"."""

    @property
    def max_tokens(self) -> int:
        """The longest call it takes: the size of a prefill chunk."""

    def length_for(self, tokens: int) -> int:
        """Return the shortest length it takes that holds so many tokens, at most max_tokens."""

    def bind(self, length: int) -> Sequence[Call]:
        """Return a call of each segment at one of the lengths `length_for` returns."""

    def close(self) -> None:
        """Give back sessions and memory. No call may be used afterwards."""
