"""An image encoder on onnxruntime, on the CPU: for machines without an NPU, and for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnxruntime

from backends.base import BackendError, EngineLost
from backends.spec import VisionOptions

_ERRORS_ONLY = 3
_TYPES = {"uint8": "tensor(uint8)", "float32": "tensor(float)"}


class OrtEncoder:
    """See executor.EncoderExecutor."""

    def __init__(self, path: Path, options: VisionOptions) -> None:
        """Load a graph. Raises BackendError(model_corrupt), also for one that takes no such images."""
        self.runtime = f"onnxruntime {onnxruntime.__version__}"
        self._path = path
        session_options = onnxruntime.SessionOptions()
        session_options.log_severity_level = _ERRORS_ONLY
        session_options.enable_cpu_mem_arena = False
        session_options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session: Any = onnxruntime.InferenceSession(
                str(path), session_options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # the library's errors have no common base but this
            raise BackendError(
                "model_corrupt",
                f"onnxruntime cannot load the image encoder {path}: {error}\nPut the whole file there.",
            ) from error
        inputs = self._session.get_inputs()
        width, height = options.size
        shape = [1, height, width, 3] if options.layout == "nhwc" else [1, 3, height, width]
        if len(inputs) != 1 or inputs[0].type != _TYPES[options.dtype] or not _takes(inputs[0].shape, shape):
            found = ", ".join(f"{item.type} of shape {item.shape}" for item in inputs)
            raise BackendError(
                "model_corrupt",
                f"The image encoder {path} takes {found}, and the entry says {options.dtype} of shape "
                f"{shape}. Correct size, layout and dtype under vision in models.yaml, or put the right "
                "file there.",
            )
        self._input: str = inputs[0].name

    def run(self, pixels: npt.NDArray[Any]) -> Sequence[npt.NDArray[Any]]:
        try:
            outputs: Sequence[npt.NDArray[Any]] = self._session.run(None, {self._input: pixels})
        except Exception as error:
            raise EngineLost(f"onnxruntime failed on the image encoder {self._path}: {error}") from error
        return outputs

    def close(self) -> None:
        self._session = None


def _takes(declared: Sequence[Any], shape: Sequence[int]) -> bool:
    """Return whether a declared shape, in which a text or None is any length, allows this one."""
    return len(declared) == len(shape) and all(
        said == given or not isinstance(said, int) for said, given in zip(declared, shape, strict=True)
    )
