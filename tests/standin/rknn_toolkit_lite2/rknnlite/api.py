"""The part of rknnlite.api that rkserve calls. A "model file" is a JSON object that says what it does.

load, init: what load_rknn and init_runtime return. version: what get_sdk_version does. outputs: for each
output a factor and a term for the mean colours of patches of 32 pixels. runs: what each run does in turn,
then "ok": "none" returned, "raise", "shape" of the last output another, "fewer" tokens, "nan" in it, "words"
for arrays. A file that is no JSON loads all the same, as with the vendor. What was called is written to
FILE.log, a JSON object a line.

A segment of the stand-in for librknnrt is run by onnxruntime on the .onnx beside it, its inputs and outputs
rounded to float16, and its version is 2.5.0. FILE.json may hold a script for it, too.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

PATCH = 32
VERSION = (
    "==============================================\nRKNN VERSION:\n"
    "  API: librknnrt version: 2.3.2 (429f97ae6b@2025-04-09T09:09:27)\n  DRV: rknpu driver: 0.9.8\n"
)


class RKNNLite:
    """The class of this name."""

    def __init__(self, verbose: bool = False) -> None:
        self._path = Path()
        self._script: dict[str, Any] = {}
        self._runs = 0
        self._segment: Any = None

    def load_rknn(self, path: str) -> int:
        self._path = Path(path)
        try:
            self._segment, script = _segment(self._path)
            self._script = json.loads(script.read_text()) if script.exists() else {}
        except ValueError:
            self._script = {"runs": ["none"] * 1000}
        return int(self._script.get("load", 0))

    def init_runtime(self, core_mask: int = 0) -> int:
        self._log(call="init_runtime", core_mask=core_mask)
        return int(self._script.get("init", 0))

    def get_sdk_version(self) -> Any:
        version = self._script.get(
            "version", VERSION if self._segment is None else VERSION.replace("2.3.2", "2.5.0")
        )
        if version == "raise":
            raise RuntimeError("get_sdk_version")
        return version

    def inference(
        self, inputs: Sequence[Any], data_format: Sequence[str] | None = None, **_options: Any
    ) -> Any:
        if self._segment is not None:
            return self._compute(inputs)
        (pixels,) = inputs
        self._log(
            call="inference",
            shape=list(pixels.shape),
            dtype=str(pixels.dtype),
            data_format=data_format,
            crc32=zlib.crc32(pixels.tobytes()),
        )
        runs = self._script.get("runs", [])
        what = runs[self._runs] if self._runs < len(runs) else "ok"
        self._runs += 1
        if what == "none":
            return None
        if what == "raise":
            raise RuntimeError("failed to submit!")
        _, height, width, _ = pixels.shape
        rows, columns = height // PATCH, width // PATCH
        patches = pixels.reshape(rows, PATCH, columns, PATCH, 3).astype(np.float64).mean(axis=(1, 3))
        means = patches.reshape(1, rows * columns, 3).astype(np.float32)
        outputs: list[Any] = [
            means * np.float32(factor) + np.float32(term) for factor, term in self._script["outputs"]
        ]
        if what == "shape":
            outputs[-1] = outputs[-1][:, 1:]
        elif what == "fewer":
            outputs = [output[:, 1:] for output in outputs]
        elif what == "nan":
            outputs[-1][0, 5, 1] = np.nan
        elif what == "words":
            outputs = ["not", "arrays"]
        return outputs

    def _compute(self, inputs: Sequence[Any]) -> Any:
        runs = self._script.get("runs", [])
        what = runs[self._runs] if self._runs < len(runs) else "ok"
        self._runs += 1
        if what == "none":
            return None
        if what == "raise":
            raise RuntimeError("failed to submit!")
        names = [node.name for node in self._segment.get_inputs()]
        given = {name: _rounded(value) for name, value in zip(names, inputs, strict=True)}
        outputs = [_rounded(output) for output in self._segment.run(None, given)]
        return outputs[1:] if what == "fewer" else outputs

    def release(self) -> None:
        self._log(call="release")
        if self._script.get("release") == "raise":
            raise RuntimeError("release")

    def _log(self, **entry: Any) -> None:
        with Path(f"{self._path}.log").open("a") as log:
            log.write(json.dumps(entry) + "\n")


def _segment(path: Path) -> tuple[Any, Path]:
    """Return what computes the file, None where it is no segment, and where its script may be."""
    if not path.read_bytes().startswith(b"RKNN-STANDIN 1"):
        return None, path
    import onnxruntime

    session = onnxruntime.InferenceSession(path.with_suffix(".onnx"), providers=["CPUExecutionProvider"])
    return session, Path(f"{path}.json")


def _rounded(array: Any) -> Any:
    return array.astype(np.float16).astype(np.float32)
