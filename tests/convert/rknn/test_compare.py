"""The agreement of two runs is that of the worst row."""

from __future__ import annotations

import numpy as np
import pytest

from convert.rknn.inside.compare import least_cosine


def rows(*values: list[float]) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("found", "expected", "cosine"),
    [
        (rows([3, 4], [0, 2]), rows([3, 4], [0, 1]), 1.0),
        (rows([1e6, 0], [3, 4]), rows([1e6, 0], [5, 0]), 0.6),  # not hidden by a large row
        (rows([0, 0]), rows([0, 0]), 1.0),
        (rows([0, 0]), rows([0, 1]), 0.0),
        (rows([np.inf, 1]), rows([1, 1]), 0.0),
        (rows([np.nan, 0]), rows([0, 0]), 0.0),
        (rows([1, 1]), rows([1, 1], [1, 1]), 0.0),
    ],
)
def test_the_least_cosine_of_all_rows(found: np.ndarray, expected: np.ndarray, cosine: float) -> None:
    assert least_cosine(found, expected) == pytest.approx(cosine)
