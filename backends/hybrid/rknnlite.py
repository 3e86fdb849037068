"""Segments on the NPU through rknn-toolkit-lite2: for a librknnrt without the functions of `rknn`.

It takes and gives float32, and copies all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from backends.base import EngineLost
from backends.engine import Progress
from backends.hybrid.buffers import Buffers
from backends.hybrid.cores import CORES
from backends.hybrid.executor import Array
from backends.hybrid.folder import HybridFolder
from backends.rknn.lite import LiteModel
from backends.spec import CoreMask

_OTHERWISE = "Or install a librknnrt that runs segments without it: rkserve runtime install FILE|URL."


class RknnLiteCall:
    """One segment at one length. See executor.Call."""

    def __init__(
        self, file: str, model: LiteModel, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self._file = file
        self._model = model
        self._layouts = ["nchw"] * len(inputs)

    def run(self) -> None:
        """See executor.Call. Raises EngineLost."""
        found = self._model.run(self.inputs, self._layouts)
        shapes = [np.shape(output) for output in found]
        if [np.size(output) for output in found] != [array.size for array in self.outputs]:
            raise EngineLost(
                f"{self._file} gave outputs of the shapes {shapes} where meta2.json says "
                f"{[array.shape for array in self.outputs]}: build the folder's .rknn files again."
            )
        for array, output in zip(self.outputs, found, strict=True):
            np.copyto(array, np.reshape(output, array.shape))


class RknnLiteExecutor:
    """A folder's segments in rknn-toolkit-lite2. See executor.Executor; takes the lengths built."""

    def __init__(
        self,
        folder: HybridFolder,
        progress: Progress,
        *,
        core_mask: CoreMask = "auto",
        wanted: str | None = None,
    ) -> None:
        """Load all segments; `progress` is called from 0 to 1.

        wanted: which versions of librknnrt the entry asks for. Raises BackendError.
        """
        self.max_tokens = folder.meta.lengths[-1]
        self._lengths = folder.meta.lengths
        self._described = folder.meta.segments
        self._files = [build.file for build in folder.builds]
        self._buffers = Buffers(self.max_tokens)
        self._models: list[LiteModel] = []
        self.runtime = ""
        try:
            for index, file in enumerate(self._files):
                progress(index / len(self._files), f"segment {index + 1} of {len(self._files)}")
                self._models.append(LiteModel(folder.file(file), CORES[core_mask], otherwise=_OTHERWISE))
                if index == 0:
                    version = self._models[0].library_version(wanted)
                    self.runtime = f"librknnrt {version} (rknn-toolkit-lite2)"
        except BaseException:
            self.close()
            raise

    def length_for(self, tokens: int) -> int:
        return next((length for length in self._lengths if length >= tokens), self.max_tokens)

    def bind(self, length: int) -> Sequence[RknnLiteCall]:
        arrays = self._buffers.chain(self._described, length)
        return [
            RknnLiteCall(file, model, inputs, outputs)
            for file, model, (inputs, outputs) in zip(self._files, self._models, arrays, strict=True)
        ]

    def close(self) -> None:
        """See executor.Executor. May be called again."""
        while self._models:
            self._models.pop().close()
