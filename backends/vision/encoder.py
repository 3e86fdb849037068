"""Image files to embeddings: decoded, prepared, encoded, and kept for the next turn of the chat.

Used from the engine's thread, within the NPU's turn of the run or load.
"""

from __future__ import annotations

import hashlib

import numpy as np
from PIL import Image as Pixels

from backends.base import BackendError, EngineLost, Image
from backends.spec import VisionOptions
from backends.vision.decode import BadImage, decode
from backends.vision.embedding import Embedding, EmbeddingCache, UnusableOutputs, interleaved
from backends.vision.executor import open_executor
from backends.vision.prepare import prepare


class ImageEncoder:
    """The encoder of one model. tokens: an image's in the prompt. width: floats of one token, all outputs."""

    def __init__(self, options: VisionOptions, context_length: int) -> None:
        """Load the encoder and run it once, on grey. Raises BackendError.

        How many tokens an image takes is known only from a run, and a prompt is measured before its images
        are encoded. The cache holds as many images as the context, so that a chat with several of them, sent
        anew each turn, never pushes its own out.
        """
        self._options = options
        self._executor = open_executor(options)
        self.runtime = self._executor.runtime
        try:
            probe = self._encode(Pixels.new("RGB", (1, 1), (127, 127, 127)))
        except (EngineLost, UnusableOutputs) as error:
            self.close()
            raise BackendError(
                "load_failed" if isinstance(error, EngineLost) else "model_corrupt",
                f"The image encoder {options.encoder} cannot be used. Its first run: {error}. Check the "
                "file, and size, layout and dtype under vision in models.yaml.",
            ) from error
        self.tokens, self.width = probe.shape
        self._cache = EmbeddingCache(max(1, context_length // self.tokens))

    def embed(self, image: Image, owner: str) -> Embedding:
        """Return an image's embedding, which is not to be changed.

        Images of different owners are not looked up for each other: the time it takes would tell. Raises
        BackendError(invalid_request) for an image that cannot be used, EngineLost.
        """
        key = (owner, digest(image))
        embedding = self._cache.get(key)
        if embedding is None:
            try:
                embedding = self._encode(decode(image.data, self._options.max_pixels))
            except BadImage as error:
                raise BackendError("invalid_request", f"{image.field} {error}", image.field) from error
            except UnusableOutputs as error:
                raise EngineLost(f"The image encoder {self._options.encoder} failed: {error}.") from error
            if embedding.shape != (self.tokens, self.width):
                raise EngineLost(
                    f"The image encoder {self._options.encoder} gave {embedding.shape} and before "
                    f"{(self.tokens, self.width)} numbers for an image."
                )
            if not np.isfinite(embedding).all():
                raise BackendError(
                    "invalid_request",
                    f"{image.field} cannot be encoded: the image encoder has no finite numbers for it. Send "
                    "another image, or this one in another size.",
                    image.field,
                )
            self._cache.put(key, embedding)
        return embedding

    def close(self) -> None:
        """Give everything back."""
        self._executor.close()

    def _encode(self, image: Pixels.Image) -> Embedding:
        return interleaved(self._executor.run(prepare(image, self._options)))


def digest(image: Image) -> bytes:
    """Return what tells an image file from any other."""
    return hashlib.sha256(image.data).digest()
