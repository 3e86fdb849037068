"""How long a worker may take, before it is taken for hung. Pure values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backends.base import EmbedParams, GenerateParams, Span
from server.registry import Entry
from server.settings import Settings

LOAD_S = 60.0
LOAD_S_PER_GB = 30.0


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """In seconds. load_s: for the whole load. heartbeat_s: without a sign of life. stall_s: without a token.

    abort_grace_s: for a run to end after it was cancelled, and for a worker to end after it was told to.
    start_s: until the first sign of life, since a cold start of Python from an SD card is slow. prefill_s and
    prefill_s_per_token: for prefill to go on, by the tokens still to be computed.
    """

    load_s: float
    heartbeat_s: float
    stall_s: float
    abort_grace_s: float
    start_s: float = 30.0
    prefill_s: float = 60.0
    prefill_s_per_token: float = 0.12

    @classmethod
    def of(cls, settings: Settings, entry: Entry) -> Timeouts:
        """Return the time-outs of a model under these settings."""
        load_s = settings.load_timeout_s
        return cls(
            load_s=LOAD_S + LOAD_S_PER_GB * entry.memory_mb / 1024 if load_s is None else load_s,
            heartbeat_s=settings.heartbeat_s,
            stall_s=settings.stall_s,
            abort_grace_s=settings.abort_grace_s,
        )

    def prefill(self, tokens: int) -> float:
        """Return how long prefill may be silent with so many tokens still to be computed.

        The slowest measured on a board, a 1.7B model with 8,192 tokens, needs 28 ms a token.
        """
        return self.prefill_s + self.prefill_s_per_token * tokens


def most_tokens(params: GenerateParams | EmbedParams, context_length: int) -> int:
    """Return an upper bound of what is prefilled in one go: no token is shorter than a byte, images aside.

    Of inputs to embed the longest: a worker reports each.
    """
    if isinstance(params, EmbedParams):
        return max(
            (
                min(context_length, _bytes(one.prompt) if one.token_ids is None else len(one.token_ids))
                for one in params.inputs
            ),
            default=0,
        )
    if params.images:
        return context_length
    return min(context_length, _bytes(params.prompt))


def _bytes(prompt: Sequence[Span]) -> int:
    return sum(len(span.text.encode("utf-8", "replace")) for span in prompt)
