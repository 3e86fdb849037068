"""Small random models of each architecture, and what transformers answers with them.

The weights are not stored: they are made again from a seed, by name, so that the tests and the oracle have
the same ones. Needs numpy only, so that both can import it.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.oracle.values import DIRECTORY

FILE = "architectures.json.gz"
STEPS = (0, 1, 20, 39)  # answer tokens before which all logits are kept
ANSWER_TOKENS = 40

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Conversation:
    """A prompt, its greedy answer, and the logits before the answer tokens of STEPS."""

    prompt: list[int]
    answer: list[int]
    logits: list[list[float]]


@dataclass(frozen=True)
class Model:
    """A model: its config.json, its weights' shapes, how they are drawn, and conversations by name.

    dtype: how the checkpoint stores them, as safetensors names it. gains: a pattern of names and the factor
    of the standard size of such weights; norm_mean: what norm weights vary around.
    """

    config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    seed: int
    dtype: str
    norm_mean: float
    gains: dict[str, float]
    conversations: dict[str, Conversation]

    def weights(self) -> dict[str, Array]:
        """Return the weights by name."""
        return random_weights(self.shapes, self.seed, self.dtype, self.norm_mean, self.gains)


def random_weights(
    shapes: Mapping[str, Sequence[int]],
    seed: int,
    dtype: str,
    norm_mean: float,
    gains: Mapping[str, float],
) -> dict[str, Array]:
    """Return weights that `dtype` can hold exactly, by name; each depends on its name and the seed only."""
    return {
        name: _rounded(_random(name, tuple(shape), seed, norm_mean, gains), dtype)
        for name, shape in shapes.items()
    }


def _random(
    name: str, shape: tuple[int, ...], seed: int, norm_mean: float, gains: Mapping[str, float]
) -> Array:
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    values = rng.standard_normal(shape)
    if len(shape) == 1:
        values = norm_mean + 0.2 * values
    elif "embed_tokens" not in name:
        values = values / np.sqrt(shape[-1])
    for pattern, gain in gains.items():
        if re.search(pattern, name):
            values = values * gain
    return values.astype(np.float32)


def _rounded(values: Array, dtype: str) -> Array:
    if dtype == "F16":
        return values.astype(np.float16).astype(np.float32)
    if dtype == "BF16":
        return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return values


@cache
def models(directory: Path = DIRECTORY) -> dict[str, Model]:
    """Return the models by name."""
    document = json.loads(gzip.decompress((directory / FILE).read_bytes()))
    return {name: _model(entry) for name, entry in document.items()}


def _model(entry: dict[str, Any]) -> Model:
    fields = dict(entry)
    fields["shapes"] = {name: tuple(shape) for name, shape in entry["shapes"].items()}
    fields["conversations"] = {
        name: Conversation(**conversation) for name, conversation in entry["conversations"].items()
    }
    return Model(**fields)
