"""YaRN as a config.json describes it, against the formulas of the paper (arXiv 2309.00071) in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from backends.hybrid.rope import inverse_frequencies, magnitude
from convert.hf_config import Config
from convert.hf_rope import ropes

HEAD_DIM, THETA, FACTOR, ORIGINAL = 128, 10_000.0, 16.0, 4096
YARN = {"rope_type": "yarn", "factor": FACTOR, "original_max_position_embeddings": ORIGINAL}


def frequencies(fast: float, slow: float, *, whole: bool = True) -> np.ndarray:
    """Return YaRN's. Dimensions that turn more than `fast` times in the original context stay as they are.

    Those that turn less than `slow` times are divided by the factor. Pair i turns L theta^(-2 i / D) / (2 pi)
    times. whole: the borders are rounded to whole dimensions, away from each other.
    """
    low, high = (
        HEAD_DIM * math.log(ORIGINAL / (turns * 2 * math.pi)) / (2 * math.log(THETA))
        for turns in (fast, slow)
    )
    if whole:
        low, high = math.floor(low), math.ceil(high)
    found = []
    for pair in range(HEAD_DIM // 2):
        plain = THETA ** (-2 * pair / HEAD_DIM)
        kept = 1 - min(1.0, max(0.0, (pair - low) / (high - low)))
        found.append(kept * plain + (1 - kept) * plain / FACTOR)
    return np.array(found)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, frequencies(32, 1)),
        ({"beta_fast": None, "beta_slow": None}, frequencies(32, 1)),
        ({"beta_fast": 8.0, "beta_slow": 3.0}, frequencies(8, 3)),
        ({"beta_fast": 64}, frequencies(64, 1)),
        ({"beta_slow": 4}, frequencies(32, 4)),
        ({"truncate": False}, frequencies(32, 1, whole=False)),
        ({"beta_fast": 8.0, "beta_slow": 3.0, "truncate": False}, frequencies(8, 3, whole=False)),
    ],
)
@pytest.mark.parametrize("form", ["rope_parameters", "rope_scaling"])
def test_yarn(form: str, given: dict[str, Any], expected: np.ndarray) -> None:
    rope = ropes(Config({form: YARN | given}), HEAD_DIM, 65_536, {"full": THETA})["full"]
    np.testing.assert_allclose(inverse_frequencies(rope), expected, rtol=1e-12)
    assert magnitude(rope) == pytest.approx(0.1 * math.log(FACTOR) + 1, rel=1e-12)
