"""What the KV cache may hold of images, turn by turn; and the struct that the library gets."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from backends.rkllm.multimodal import CachedImages, ImagePrompt, multimodal_input
from backends.spec import ImageMarks

A, B, C = b"a", b"b", b"c"


@pytest.mark.parametrize(
    ("before", "now", "contradict"),
    [
        ((), (), False),
        ((), (A,), False),
        ((A,), (A,), False),
        ((A,), (A, B), False),  # the chat goes on
        ((A, B), (A,), False),  # an older turn, asked again
        ((A,), (), False),
        ((A,), (B,), True),
        ((A, B), (A, C), True),
        ((A, B), (B, A), True),
        ((A, B), (B,), True),
    ],
)
def test_another_image_in_the_same_place(
    before: tuple[bytes, ...], now: tuple[bytes, ...], contradict: bool
) -> None:
    cached = CachedImages()
    cached.run_begins()
    cached.run_ended(before)
    assert cached.contradict(now) is contradict


def test_after_a_run_that_failed_nothing_is_known() -> None:
    cached = CachedImages()
    cached.run_begins()
    cached.run_ended((A,))
    cached.run_begins()
    assert cached.contradict((A,))
    assert not cached.contradict(())


def test_the_struct() -> None:
    embeddings = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)
    prompt = ImagePrompt("a\u00e9<image>", embeddings, (448, 224), ImageMarks(start="s", content="c"), (A, B))
    given, _keep = multimodal_input(prompt)
    multimodal = given.multimodal_input
    image = multimodal.image
    assert (given.input_type, given.role, multimodal.prompt) == (3, b"user", "a\u00e9<image>".encode())
    assert (image.n_image, image.n_image_tokens, image.image_width, image.image_height) == (2, 3, 448, 224)
    assert (image.image_start, image.image_end, image.image_content) == (b"s", b"<|vision_end|>", b"c")
    floats = ctypes.cast(image.image_embed, ctypes.POINTER(ctypes.c_float * 24)).contents
    assert list(floats) == list(map(float, range(24)))
    assert not multimodal.video.video_embed
