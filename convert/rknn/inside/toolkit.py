"""rknn-toolkit2: builds one graph, and simulates it while it is held.

Its functions return codes and print why; the printed lines are the command's to show.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from backends.hybrid.executor import Array
from backends.hybrid.meta import Segment


class ToolkitFailed(Exception):
    """A step of the toolkit's failed; the reason is in what it printed."""


class Simulated:
    """A graph built for a chip and ready in the simulator. Held until `release`; from one thread."""

    def __init__(
        self, source: Path, segment: Segment, lengths: Sequence[int], target: str, written: Path
    ) -> None:
        """Build `source` for all lengths into the file `written`. Raises ToolkitFailed."""
        from rknn.api import RKNN

        self._rknn: Any = RKNN(verbose=False)
        self._inputs = len(segment.inputs)
        shapes = [
            [[length if size == "T" else size for size in tensor.shape] for tensor in segment.inputs]
            for length in lengths
        ]
        # Inputs of fixed sizes only (none of today's segments) would be the same shape several times.
        shapes = [shape for number, shape in enumerate(shapes) if shape not in shapes[:number]]
        self._check("config", self._rknn.config(target_platform=target, dynamic_input=shapes))
        self._check("load_onnx", self._rknn.load_onnx(model=str(source)))
        self._check("build", self._rknn.build(do_quantization=False))
        self._check("export_rknn", self._rknn.export_rknn(str(written)))
        self._check("init_runtime", self._rknn.init_runtime())

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Return what the simulator computes. Raises ToolkitFailed."""
        values = self._rknn.inference(
            inputs=[np.ascontiguousarray(array) for array in inputs], data_format=["nchw"] * self._inputs
        )
        if values is None:
            raise ToolkitFailed("inference in the simulator failed")
        return [np.asarray(value, np.float32) for value in values]

    def release(self) -> None:
        self._rknn.release()

    def _check(self, step: str, code: int) -> None:
        if code != 0:
            raise ToolkitFailed(f"its step {step} returned {code}")
