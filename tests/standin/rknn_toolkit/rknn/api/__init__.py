"""The stand-in's RKNN. It returns codes, prints why, and knows only the shapes it was given."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

_HERE = Path(__file__).parents[2]


class RKNN:
    """One graph. A fault is one of: build, export, kill, hang, noise, infinite, cosine=COSINE."""

    def __init__(self, verbose: bool = False) -> None:
        self._shapes: Sequence[Any] = ()
        self._source: Path | None = None
        self._session: Any = None

    def config(self, target_platform: str, dynamic_input: Sequence[Any]) -> int:
        self._shapes = dynamic_input
        return 0 if target_platform == "rk3588" else -1

    def load_onnx(self, model: str) -> int:
        self._source = Path(model)
        return 0

    def build(self, do_quantization: bool) -> int:
        print("I building", self._name, flush=True)
        if self._fault == "build":
            print("\x1b[31mE build: the operator Softmax9 is not supported\x1b[0m", flush=True)
            return -1
        if self._fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._fault == "hang":
            threading.Event().wait()
        return -1 if do_quantization else 0

    def export_rknn(self, path: str) -> int:
        assert self._source is not None
        Path(path).write_bytes(os.urandom(8) + self._source.read_bytes())
        if self._fault == "export":
            return -1
        with (_HERE / "built.txt").open("a") as built:
            built.write(f"{self._name} {json.dumps(self._shapes)}\n")
        return 0

    def init_runtime(self) -> int:
        self._session = onnxruntime.InferenceSession(str(self._source), providers=["CPUExecutionProvider"])
        return 0

    def inference(self, inputs: Sequence[Any], data_format: Sequence[str]) -> list[Any] | None:
        if [list(array.shape) for array in inputs] not in [list(shape) for shape in self._shapes]:
            print("E inference: this shape was not built", flush=True)
            return None
        names = [node.name for node in self._session.get_inputs()]
        values = self._session.run(None, dict(zip(names, inputs, strict=True)))
        if self._fault == "noise":
            values[0] = values[0] + np.random.default_rng(0).standard_normal(values[0].shape)
        if self._fault == "infinite":
            values[0][0, 0] = np.inf
        if self._fault is not None and self._fault.startswith("cosine="):
            values[0] = _turned(values[0], float(self._fault.removeprefix("cosine=")))
        return list(values)

    def release(self) -> None:
        self._session = None

    @property
    def _name(self) -> str:
        assert self._source is not None
        return self._source.stem

    @property
    def _fault(self) -> str | None:
        faults = _HERE / "faults.json"
        return json.loads(faults.read_text()).get(self._name) if faults.exists() else None


def _turned(rows: Any, cosine: float) -> Any:
    """Return each row turned by an angle of that cosine."""
    aside = np.random.default_rng(0).standard_normal(rows.shape)
    aside -= rows * (aside * rows).sum(axis=1, keepdims=True) / (rows * rows).sum(axis=1, keepdims=True)
    aside *= np.linalg.norm(rows, axis=1, keepdims=True) / np.linalg.norm(aside, axis=1, keepdims=True)
    return (cosine * rows + np.sqrt(1 - cosine**2) * aside).astype(np.float32)
