"""Prompts as token ids, and what is said where one cannot be used. Shared by the backends.

Knows a tokenizer and how long a context is, nothing of models and engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from backends.base import BackendError, Span
from backends.tokenizer import PromptTokenizer
from backends.vocabulary import UnsupportedTokenizer


@dataclass(frozen=True)
class Context:
    """How many tokens prompt and answer of a model may have together."""

    model_id: str
    length: int

    def refusal(self, tokens: int | str) -> BackendError:
        """Return the error for a prompt of so many tokens, a number or "at least 9,000"."""
        return BackendError(
            "context_length_exceeded",
            f"The prompt has {tokens} tokens, and the context of {self.model_id} is "
            f"{self.length} tokens, prompt and answer together. Shorten the conversation, or begin "
            "a new one.",
            "messages",
        )


def encode(tokenizer: PromptTokenizer, prompt: Sequence[Span], context: Context) -> list[int]:
    """Return a prompt's token ids, more than the context too.

    Raises BackendError(context_length_exceeded) for one so long that encoding it would be a waste.
    """
    at_least = tokenizer.at_least(prompt)
    if at_least >= context.length:
        raise context.refusal(f"at least {at_least}")
    return tokenizer.encode(prompt)


def empty_prompt() -> BackendError:
    """Return the error for a prompt without tokens."""
    return BackendError("invalid_request", "The prompt is empty: it needs at least one token.")


def read_tokenizer(path: Path) -> PromptTokenizer:
    """Read a tokenizer.json. Raises BackendError(load_failed)."""
    try:
        return PromptTokenizer(path)
    except OSError as error:
        raise BackendError(
            "load_failed",
            f"The tokenizer {path} cannot be read ({error.strerror}). Pull the model again, or correct "
            "tokenizer in models.yaml.",
        ) from error
    except UnsupportedTokenizer as error:
        raise BackendError(
            "load_failed",
            f"The tokenizer {path} cannot be used: it has {error}. Name another one in models.yaml, or none "
            "(null).",
        ) from error
