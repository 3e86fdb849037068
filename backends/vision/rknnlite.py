"""An image encoder on the NPU, through the vendor's rknn-toolkit-lite2. See backends.rknn.lite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from backends.rknn.enums import RknnCoreMask
from backends.rknn.lite import LiteModel
from backends.spec import VisionOptions

# All cores: the NPU's turn is ours as a whole.
_CORES = RknnCoreMask.CORE_0_1_2
_OTHERWISE = "Or take the encoder's file away to chat without images."


class RknnLiteEncoder:
    """See executor.EncoderExecutor."""

    def __init__(self, path: Path, options: VisionOptions) -> None:
        """Load a .rknn file. Raises BackendError."""
        self._layout = options.layout
        self._model = LiteModel(path, _CORES, what="image encoder", otherwise=_OTHERWISE)
        try:
            self.runtime = f"librknnrt {self._model.library_version(options.runtime)}"
        except BaseException:
            self.close()
            raise

    def run(self, pixels: npt.NDArray[Any]) -> Sequence[npt.NDArray[Any]]:
        outputs = self._model.run([pixels], [self._layout])
        if not all(isinstance(output, np.ndarray) for output in outputs):
            raise self._model.lost("returned what are no arrays")
        return outputs

    def close(self) -> None:
        self._model.close()
