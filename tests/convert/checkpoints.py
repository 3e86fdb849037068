"""Writes Hugging Face checkpoints of small models, byte by byte, without the libraries that read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from convert.graphs import Array
from tests.oracle.architectures import Model
from tests.tiny import CHAT_TEMPLATE, tiny_tokenizer

CARD = "---\nlicense: apache-2.0\nlanguage: [en]\n---\n# A model\n"


def write_checkpoint(directory: Path, model: Model, *, parts: int = 1, **changes: Any) -> Path:
    """Write a checkpoint of one of the oracle's models in `parts` files; changes: of its config."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(model.config | changes))
    (directory / "tokenizer.json").write_text(tiny_tokenizer())
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    (directory / "README.md").write_text(CARD)
    (directory / "LICENSE.txt").write_text("The licence's text.\n")
    (directory / "NOTICE").write_text("The notice.\n")
    write_tensors(directory, model.weights(), model.dtype, parts)
    return directory


def write_tensors(directory: Path, weights: Mapping[str, Array], dtype: str, parts: int = 1) -> None:
    """Write weights as one file, or as several with an index."""
    names = sorted(weights)
    if parts == 1:
        (directory / "model.safetensors").write_bytes(safetensors(weights, dtype))
        return
    where: dict[str, str] = {}
    for part in range(parts):
        file = f"model-{part + 1:05d}-of-{parts:05d}.safetensors"
        mine = {name: weights[name] for name in names[part::parts]}
        (directory / file).write_bytes(safetensors(mine, dtype))
        where |= dict.fromkeys(mine, file)
    index = {"metadata": {"total_size": 1}, "weight_map": where}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def safetensors(weights: Mapping[str, Array], dtype: str) -> bytes:
    """Return a file of that format: the header's length, the header, the tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, weight in weights.items():
        stored = _stored(weight, dtype)
        header[name] = {
            "dtype": dtype,
            "shape": list(weight.shape),
            "data_offsets": [len(data), len(data) + len(stored)],
        }
        data += stored
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def _stored(weight: Array, dtype: str) -> bytes:
    if dtype == "BF16":
        return bytes((weight.view(np.uint32) >> np.uint32(16)).astype("<u2").tobytes())
    return weight.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()
