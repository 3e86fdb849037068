"""Pooling against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from backends.base import BackendError
from backends.pooling import Pool, check_dimensions, finished
from backends.spec import EmbeddingOptions

ROWS = np.array([[3, 4, 0], [0, 0, 12], [6, 2, 0]], np.float32)


@pytest.mark.parametrize(
    ("pooling", "vector"), [("last", [6, 2, 0]), ("cls", [3, 4, 0]), ("mean", [3, 2, 4])]
)
@pytest.mark.parametrize("pieces", [[3], [1, 2], [1, 1, 1]])
def test_rows_in_pieces(pooling: str, vector: list[float], pieces: list[int]) -> None:
    pool = Pool(EmbeddingOptions(pooling=pooling))  # type: ignore[arg-type]  # one of the three
    rows = ROWS.copy()
    begin = 0
    for size in pieces:
        pool.take(rows[begin : begin + size])
        rows[begin : begin + size] = np.nan  # what the library does with its memory
        begin += size
    made = pool.vector()
    assert made is not None and made.tolist() == vector
    assert pool.rows == 3


def test_no_rows() -> None:
    assert Pool(EmbeddingOptions()).vector() is None


def test_length_one() -> None:
    made = finished(np.array([3.0, 4.0, 12.0]), EmbeddingOptions(), None)
    assert made is not None and made.dtype == np.float32
    assert made.tolist() == pytest.approx([3 / 13, 4 / 13, 12 / 13])
    plain = finished(np.array([3.0, 4.0, 12.0]), EmbeddingOptions(normalize=False), None)
    assert plain is not None and plain.tolist() == [3, 4, 12]


def test_a_shorter_vector_has_length_one_too() -> None:
    made = finished(np.array([3.0, 4.0, 12.0]), EmbeddingOptions(matryoshka=True), 2)
    assert made is not None and made.tolist() == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize("values", [[0, 0], [np.nan, 1], [np.inf, 1], [-np.inf, np.inf]])
@pytest.mark.parametrize("normalize", [True, False])
def test_vectors_that_mean_nothing(values: list[float], normalize: bool) -> None:
    assert finished(np.array(values, np.float64), EmbeddingOptions(normalize=normalize), None) is None


def test_the_smallest_and_the_largest_numbers_have_a_direction() -> None:
    for value in (1e-45, 3e38):
        made = finished(np.array([value, value]), EmbeddingOptions(), None)
        assert made is not None and made.tolist() == pytest.approx([0.5**0.5] * 2)


def test_dimensions() -> None:
    plain, nested = EmbeddingOptions(), EmbeddingOptions(matryoshka=True)
    for options in (plain, nested):
        check_dimensions("m", options, None, 8)
        check_dimensions("m", options, 8, 8)
        with pytest.raises(BackendError) as too_many:
            check_dimensions("m", options, 9, 8)
        assert (too_many.value.code, too_many.value.param) == ("invalid_request", "dimensions")
    check_dimensions("m", nested, 3, 8)
    with pytest.raises(BackendError) as refused:
        check_dimensions("m", plain, 3, 8)
    assert refused.value.code == "unsupported_parameter"
