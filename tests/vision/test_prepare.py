"""Prepared pixels against ones painted by hand; embeddings against rows put together by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from backends.spec import VisionOptions
from backends.vision.embedding import EmbeddingCache, UnusableOutputs, interleaved
from backends.vision.prepare import fitted, prepare
from tests.vision.pictures import GREEN, GREY, RED, WHITE, Bytes, quadrants


def prepared(pixels: Bytes, size: tuple[int, int], **options: Any) -> Any:
    return prepare(Image.fromarray(pixels), VisionOptions(encoder="x", size=size, **options))


@pytest.mark.parametrize(
    ("width", "height", "box"),
    [
        (8, 8, (0, 0, 8, 8)),
        (8, 4, (0, 2, 8, 4)),
        (4, 8, (2, 0, 4, 8)),
        (16, 4, (0, 3, 8, 2)),
        (1, 80, (3, 0, 1, 8)),
    ],
)
def test_an_image_stands_in_the_middle_of_a_grey_square(
    width: int, height: int, box: tuple[int, int, int, int]
) -> None:
    found = prepared(np.full((height, width, 3), RED, np.uint8), (8, 8))
    left, top, wide, high = box
    expected = np.full((1, 8, 8, 3), GREY, np.uint8)
    expected[0, top : top + high, left : left + wide] = RED
    assert found.dtype == np.uint8
    assert found.tolist() == expected.tolist()


def test_stretching_keeps_no_proportions() -> None:
    found = prepared(np.full((2, 30, 3), GREEN, np.uint8), (6, 4), resize="stretch")
    assert found.shape == (1, 4, 6, 3)
    assert (found == GREEN).all()


def test_a_size_that_is_no_square_has_its_width_first() -> None:
    found = prepared(quadrants(6, 4), (6, 4), resize="stretch")
    assert found[0, 0, 0].tolist() == list(RED) and found[0, 3, 5].tolist() == list(WHITE)


def test_layout_and_numbers() -> None:
    pixels = quadrants(4, 4)
    found = prepared(
        pixels, (4, 4), layout="nchw", dtype="float32", mean=(127.5, 100.0, 0.0), std=(127.5, 2.0, 1.0)
    )
    assert (found.shape, found.dtype, found.flags.c_contiguous) == ((1, 3, 4, 4), np.float32, True)
    assert found[0, :, 0, 0].tolist() == pytest.approx([(200 - 127.5) / 127.5, (10 - 100) / 2, 30])
    raw = prepared(pixels, (4, 4), dtype="float32")
    assert raw[0, 0, 0].tolist() == list(map(float, RED))


@pytest.mark.parametrize("image", [(1, 1), (1, 60_000), (60_000, 1), (3, 2), (447, 448), (20_000, 1_000)])
def test_what_fits_is_never_empty_and_never_too_large(image: tuple[int, int]) -> None:
    width, height = fitted(image, (448, 336))
    assert 1 <= width <= 448 and 1 <= height <= 336


def rows(*shape: int, begin: int = 0) -> Any:
    return np.arange(begin, begin + np.prod(shape), dtype=np.float32).reshape(shape)


def test_several_outputs_follow_each_other_token_by_token() -> None:
    found = interleaved([rows(1, 2, 3), rows(1, 2, 3, begin=100).astype(np.float16)])
    assert found.tolist() == [[0, 1, 2, 100, 101, 102], [3, 4, 5, 103, 104, 105]]
    assert found.dtype == np.float32 and found.flags.c_contiguous


@pytest.mark.parametrize("shape", [(2, 3), (1, 2, 3), (1, 1, 2, 3), (1, 2, 3, 1)])
def test_the_first_dimension_above_1_is_the_tokens(shape: tuple[int, ...]) -> None:
    assert interleaved([rows(*shape)]).shape == (2, 3)


@pytest.mark.parametrize(
    "outputs",
    [
        [rows(1, 1, 1)],
        [rows(1, 7)],
        [np.float32(1)],
        [rows(0, 3)],
        [rows(2, 3, 4)],
        [rows(2, 3), rows(2, 4)],
        [rows(2, 3), rows(1)],
        [rows(2, 3).astype(np.int8)],
        [np.asarray([["a", "b"], ["c", "d"]])],
    ],
)
def test_outputs_that_are_no_embeddings(outputs: list[Any]) -> None:
    with pytest.raises(UnusableOutputs):
        interleaved(outputs)


def test_the_embedding_used_longest_ago_goes() -> None:
    cache = EmbeddingCache(2)
    for name in (b"a", b"b"):
        cache.put(("", name), rows(1, 2))
    assert cache.get(("", b"a")) is not None
    cache.put(("", b"c"), rows(1, 2))
    assert [cache.get(("", name)) is not None for name in (b"a", b"b", b"c")] == [True, False, True]
    assert cache.get(("someone", b"a")) is None
