"""Prompts with images for librkllmrt: a text with marks, and the embeddings that belong there.

The library takes no token ids here: it makes the tokens itself and puts each image's rows where a mark
stands. So text from clients must not spell a mark; see prompt.flatten.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backends.base import Span
from backends.rkllm.enums import RKLLMInputType
from backends.rkllm.structs import RKLLMImageInput, RKLLMInput, RKLLMMultiModalInput
from backends.spec import ImageMarks

if TYPE_CHECKING:  # text models never need numpy
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class ImagePrompt:
    """A prompt with images. embeddings: (images, tokens, floats a token), C-contiguous float32.

    size: width and height that the encoder sees. digests: one an image, to tell it from others.
    """

    text: str
    embeddings: npt.NDArray[np.float32]
    size: tuple[int, int]
    marks: ImageMarks
    digests: tuple[bytes, ...]


def multimodal_input(prompt: ImagePrompt) -> tuple[RKLLMInput, Any]:
    """Return the struct for a prompt with images, and what must live as long as it.

    image_embed holds everything, n_image_tokens is one image's, without the number of the encoder's outputs.
    """
    marks = prompt.marks
    images, tokens, _ = prompt.embeddings.shape
    image = RKLLMImageInput(
        image_embed=prompt.embeddings.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
        n_image_tokens=tokens,
        n_image=images,
        image_start=marks.start.encode(),
        image_end=marks.end.encode(),
        image_content=marks.content.encode(),
        image_width=prompt.size[0],
        image_height=prompt.size[1],
    )
    text = prompt.text.encode("utf-8", "replace")
    given = RKLLMMultiModalInput(prompt=text, image=image)
    return (
        RKLLMInput(role=b"user", input_type=RKLLMInputType.MULTIMODAL, multimodal_input=given),
        (text, image, given, prompt.embeddings),
    )


def image_order(prompt: Sequence[Span]) -> tuple[int, ...]:
    """Return which images stand in a prompt, in their order there."""
    return tuple(span.image for span in prompt if span.image is not None)


def with_text(prompt: Sequence[Span], text: str) -> list[Span]:
    """Return a prompt with this text of the template's in each image's place."""
    return [span if span.image is None else Span(text, True) for span in prompt]


class CachedImages:
    """Which images the runtime's KV cache may hold, by digest.

    The runtime keeps what two prompts have in common, and does not say whether it compares the images or only
    the tokens in their places, which are the same for all. A prompt that differs in an image must not be
    answered by another one's, so the cache is cleared for it; a chat that goes on keeps it.
    """

    def __init__(self) -> None:
        self._known: tuple[bytes, ...] | None = ()

    def contradict(self, images: Sequence[bytes]) -> bool:
        """Return whether the cache may hold another image where one of these will stand."""
        if self._known is None:
            return bool(images)
        return any(one != other for one, other in zip(self._known, images, strict=False))

    def run_begins(self) -> None:
        """Note that what the cache holds is not known until the run has ended well."""
        self._known = None

    def run_ended(self, images: Sequence[bytes]) -> None:
        """Note that the cache holds a prompt with these images."""
        self._known = tuple(images)
