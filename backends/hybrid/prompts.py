"""Prompts as a model takes them: encoded, and refused with the numbers where they do not fit.

Knows the tokenizer and the model's sizes, nothing of running it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from backends.base import BackendError, Span
from backends.hybrid.kv_cache import TokenIds
from backends.hybrid.tokenizer import PromptTokenizer


class Prompts:
    """Encodes and measures prompts for one model. May be used from any thread."""

    def __init__(
        self, tokenizer: PromptTokenizer, model_id: str, vocab_size: int, context_length: int
    ) -> None:
        self._tokenizer = tokenizer
        self._model_id = model_id
        self._vocab_size = vocab_size
        self._context_length = context_length

    def count(self, prompt: Sequence[Span]) -> int:
        """Return a prompt's length in tokens, more than the context too.

        Raises BackendError(context_length_exceeded) for one so long that encoding it would be a waste.
        """
        return len(self._encode(prompt))

    def encode(self, prompt: Sequence[Span]) -> TokenIds:
        """Return a prompt's tokens, (T,) int32, with room in the context for one more at least.

        Raises BackendError: context_length_exceeded, invalid_request.
        """
        token_ids = self._encode(prompt)
        if not len(token_ids):
            raise BackendError("invalid_request", "The prompt is empty: it needs at least one token.")
        if len(token_ids) >= self._context_length:
            raise self._too_long(f"{len(token_ids)}")
        if token_ids.max() >= self._vocab_size:
            raise BackendError(
                "invalid_request",
                "The prompt has a control token that the tokenizer knows and the model does not "
                f"(id {token_ids.max()}, vocabulary {self._vocab_size}). Use another template.",
            )
        return token_ids

    def _encode(self, prompt: Sequence[Span]) -> TokenIds:
        at_least = self._tokenizer.at_least(prompt)
        if at_least >= self._context_length:
            raise self._too_long(f"at least {at_least}")
        return np.array(self._tokenizer.encode(prompt), np.int32)

    def _too_long(self, tokens: str) -> BackendError:
        return BackendError(
            "context_length_exceeded",
            f"The prompt has {tokens} tokens, and the context of {self._model_id} is "
            f"{self._context_length} tokens, prompt and answer together. Shorten the conversation.",
            "messages",
        )
