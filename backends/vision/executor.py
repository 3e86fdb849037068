"""What runs an image encoder: the seam to onnxruntime or the NPU's runtimes.

The contract is the one of the hybrid engine's calls (backends.hybrid.executor): memory for the outputs is the
executor's, and valid until the next run. It knows a graph and buffers; images and tokens are others' concern.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from backends.spec import VisionOptions


class EncoderExecutor(Protocol):
    """An encoder's graph, loaded. Used from one thread."""

    @property
    def runtime(self) -> str:
        """Name and version, as in "onnxruntime 1.32.0"."""

    def run(self, pixels: npt.NDArray[Any]) -> Sequence[npt.NDArray[Any]]:
        """Return the outputs for one prepared image, in the graph's order.

        Raises EngineLost where the runtime fails: what state it is in then is not known.
        """

    def close(self) -> None:
        """Give everything back."""


def open_executor(options: VisionOptions) -> EncoderExecutor:
    """Load the entry's encoder. Raises BackendError."""
    path = Path(options.encoder)
    if path.suffix == ".onnx":
        from backends.vision.ort import OrtEncoder

        return OrtEncoder(path, options)
    from backends.vision.rknnlite import RknnLiteEncoder

    return RknnLiteEncoder(path, options)
