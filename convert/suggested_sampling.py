"""The sampling that a GGUF file suggests for its model, under the names models.yaml has for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from convert.gguf_file import GgufFile, Value

# What models.yaml takes for each; a suggestion out of these bounds is left out. Names as in the GGUF
# specification. Other suggestions (mirostat, XTC) name methods that the engine does not have.
_KEYS: Mapping[str, tuple[str, Callable[[float], bool]]] = {
    "temperature": ("temp", lambda value: 0 <= value <= 5),
    "top_p": ("top_p", lambda value: 0 < value <= 1),
    "top_k": ("top_k", lambda value: 0 <= value < 2**31 and value.is_integer()),
    "min_p": ("min_p", lambda value: 0 <= value <= 1),
    "repeat_penalty": ("penalty_repeat", lambda value: 0 < value <= 5),
}


def suggested_sampling(path: Path) -> dict[str, float]:
    """Return what a GGUF file says under general.sampling, {} if nothing. Raises ConvertError, OSError."""
    with GgufFile(path) as file:
        return sampling_of(file.metadata)


def sampling_of(metadata: Mapping[str, Value]) -> dict[str, float]:
    """Return the suggestions among the metadata of a GGUF file that models.yaml can express."""
    found: dict[str, float] = {}
    for name, (key, allowed) in _KEYS.items():
        value = metadata.get(f"general.sampling.{key}")
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            number = float(str(np.float32(value)))  # 0.7, not the 0.699999988079071 that float32 stores
            if allowed(number):
                found[name] = int(number) if name == "top_k" else number
    return found
