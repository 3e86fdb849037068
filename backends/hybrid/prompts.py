"""Prompts as the engine takes them: encoded, and refused with the numbers where they do not fit.

Knows the tokenizer and the model's sizes, nothing of running it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from backends import prompts
from backends.base import BackendError, Span
from backends.hybrid.kv_cache import TokenIds
from backends.prompts import Context
from backends.tokenizer import PromptTokenizer


class Prompts:
    """Encodes and measures prompts for one model. May be used from any thread."""

    def __init__(self, tokenizer: PromptTokenizer, context: Context, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._context = context
        self._vocab_size = vocab_size

    def count(self, prompt: Sequence[Span]) -> int:
        """Return a prompt's length in tokens, more than the context too.

        Raises BackendError(context_length_exceeded) for one so long that encoding it would be a waste.
        """
        return len(prompts.encode(self._tokenizer, prompt, self._context))

    def encode(self, prompt: Sequence[Span]) -> TokenIds:
        """Return a prompt's tokens, (T,) int32, with room in the context for one more at least.

        Raises BackendError: context_length_exceeded, invalid_request.
        """
        token_ids = np.array(prompts.encode(self._tokenizer, prompt, self._context), np.int32)
        if not len(token_ids):
            raise prompts.empty_prompt()
        if len(token_ids) >= self._context.length:
            raise self._context.refusal(len(token_ids))
        if token_ids.max() >= self._vocab_size:
            raise BackendError(
                "invalid_request",
                "The prompt has a control token that the tokenizer knows and the model does not "
                f"(id {token_ids.max()}, vocabulary {self._vocab_size}). Use another template.",
            )
        return token_ids
