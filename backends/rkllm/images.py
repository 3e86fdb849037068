"""The images of a prompt, encoded for the runtime. For models that see; imports numpy and Pillow."""

from __future__ import annotations

import numpy as np

from backends.base import GenerateParams
from backends.engine import Cancellation, Sink
from backends.rkllm.encoder import Encoded
from backends.rkllm.multimodal import ImagePrompt
from backends.spec import RkllmOptions, VisionOptions
from backends.vision.encoder import ImageEncoder, digest


class Images:
    """A model's image encoder and what it is told. tokens_each: an image's in a prompt."""

    def __init__(self, options: VisionOptions, context_length: int) -> None:
        """Load the encoder. Raises BackendError."""
        self._options = options
        self._encoder = ImageEncoder(options, context_length)
        self.tokens_each = self._encoder.tokens
        self.details = {"image_encoder": self._encoder.runtime, "image_tokens": str(self.tokens_each)}

    def warnings(self, options: RkllmOptions) -> list[str]:
        """Return what looks wrong with the entry."""
        if self._options.encoder.endswith(".rknn") and options.base_domain_id == 0:
            return [
                "The image encoder and the language model share NPU memory domain 0, which has room for 4 "
                "GB. The vendor's demo puts the language model into another: rkllm: {base_domain_id: 1}."
            ]
        return []

    def prompt(
        self, encoded: Encoded, params: GenerateParams, sink: Sink, cancelled: Cancellation
    ) -> ImagePrompt | None:
        """Return a prompt with its images encoded, None if it is cancelled meanwhile.

        Tells the sink after each image that work goes on. Raises BackendError(invalid_request) for an image
        that cannot be used, EngineLost.
        """
        assert isinstance(encoded.prompt, str)
        images = [params.images[index] for index in encoded.images]
        embeddings = []
        for image in images:
            if cancelled.is_set():
                return None
            embeddings.append(self._encoder.embed(image, params.owner))
            sink.prefill(0, encoded.tokens)
        return ImagePrompt(
            text=encoded.prompt,
            embeddings=np.stack(embeddings),
            size=self._options.size,
            marks=self._options.marks,
            digests=tuple(map(digest, images)),
        )

    def close(self) -> None:
        """Give everything back."""
        self._encoder.close()
