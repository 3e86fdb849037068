"""Dividing the stream by a power of two changes no bit of the logits, whatever the norms' epsilon is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from convert.architectures import ARCHITECTURES
from convert.hf_config import Config
from convert.writer import write_folder
from tests.architectures.engine import CHUNK, Engine, papers
from tests.oracle.architectures import models

LARGE_EPS = 0.5  # about the mean square of the stream, so that a wrong epsilon is seen at every norm
NAMES = ("llama", "gemma3", "lfm2", "lfm3", "granite")  # norms before and after, conv layers, a multiplier

Logits = Callable[[str, float, float], np.ndarray]


@pytest.fixture
def logits(tmp_path: Path) -> Logits:
    """Converts a model of the oracle with another epsilon, its stream divided, and runs a prompt."""

    def run(name: str, eps: float, scale: float) -> np.ndarray:
        oracle = models()[name]
        key = "norm_eps" if "norm_eps" in oracle.config else "rms_norm_eps"
        model = ARCHITECTURES[oracle.config["model_type"]](Config(oracle.config | {key: eps}))
        folder = tmp_path / f"{name}-{eps}-{scale}"
        folder.mkdir()
        write_folder(folder, model, oracle.weights().__getitem__, papers(name), residual_scale=scale)
        engine = Engine(folder)
        cache = engine.forward.new_cache()
        prompt = oracle.conversations["first"].prompt
        rows = [engine.logits(prompt[:end], cache).copy() for end in (CHUNK, CHUNK + 1, CHUNK + 9)]
        return np.array(rows)

    return run


@pytest.mark.parametrize("name", NAMES)
def test_a_divided_stream_gives_the_same_logits(name: str, logits: Logits) -> None:
    whole = logits(name, LARGE_EPS, 1.0)
    np.testing.assert_array_equal(logits(name, LARGE_EPS, 64.0), whole)
    assert np.abs(logits(name, LARGE_EPS / 2, 1.0) - whole).max() > 1e-2  # so that a wrong epsilon is seen
