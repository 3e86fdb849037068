"""Model files for the stand-in for librknnrt: what a folder's ONNX segments compute, in its own format."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

META = "meta2.json"


def add_rknn_builds(
    folder: Path, *, lengths: Sequence[int] | None = None, toolkit: str = "2.5.0", target: str = "rk3588"
) -> Path:
    """Write a .rknn beside each segment's .onnx and name it in meta2.json; return the folder.

    lengths: of calls, by default those of the folder; none: a file without dynamic shapes.
    """
    meta = json.loads((folder / META).read_text())
    for segment in meta["segments"]:
        source = folder / segment["builds"][0]["file"]
        path = source.with_suffix(".rknn")
        path.write_bytes(
            standin_model(source, meta["lengths"] if lengths is None else lengths, toolkit, target)
        )
        segment["builds"].append(
            {
                "executor": "rknn",
                "variant": "fp32",
                "file": path.name,
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                "size_bytes": path.stat().st_size,
                "toolkit": toolkit,
            }
        )
    (folder / META).write_text(json.dumps(meta))
    return folder


def standin_model(path: Path, lengths: Sequence[int], toolkit: str, target: str) -> bytes:
    """Return the model file that computes an ONNX graph of two-dimensional tensors."""
    graph = onnx.load(str(path)).graph
    lines = ["RKNN-STANDIN 1", f"target {target}", f"toolkit {toolkit}", f"lengths {_words(lengths)}"]
    for kind, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            rows, cols = value.type.tensor_type.shape.dim
            lines.append(f"{kind} {value.name} {rows.dim_value} {cols.dim_value}")  # 0 for "T"
    data = []
    for weight in graph.initializer:
        array = np.atleast_2d(numpy_helper.to_array(weight)).astype("<f4")
        lines.append(f"const {weight.name} {_words(array.shape)}")
        data.append(array.tobytes())
    lines += [f"node {node.op_type} {node.output[0]} {_words(node.input)}" for node in graph.node]
    return "\n".join([*lines, "end", ""]).encode() + b"".join(data)


def calls(log: Path, *names: str) -> list[dict[str, Any]]:
    """Return the calls in a log, of these functions if any are named."""
    lines = log.read_text().splitlines() if log.exists() else []
    entries: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return [entry for entry in entries if not names or entry["call"] in names]


def _words(values: Any) -> str:
    return " ".join(map(str, values))
