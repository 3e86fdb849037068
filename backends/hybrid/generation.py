"""One answer: prefill of its prompt, then token after token until something ends it.

Knows a model as `Forward` and one KV cache; nothing of how either came about.

What counts as a generated token (completion_tokens, max_tokens): every sampled one, the end-of-answer token
and those of a stop string included, as in llama.cpp's server and vLLM. It is the work that was done.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Event

import numpy as np

from backends import repetition
from backends.base import BackendError, FinishReason, Sampling, TokenLogprob, TopLogprob
from backends.engine import Sink
from backends.hybrid import sampling
from backends.hybrid.answer import Answer
from backends.hybrid.cache_pool import CachePool
from backends.hybrid.executor import Array
from backends.hybrid.forward import Forward
from backends.hybrid.kernels import Kernels
from backends.hybrid.kv_cache import KVCache, TokenIds
from backends.repetition import RepetitionGuard
from backends.vocabulary import Vocabulary

SNAPSHOT_EVERY = (
    512  # tokens of a prompt between two snapshots, about a turn of a chat; the last is at its end
)


@dataclass(frozen=True)
class Generation:
    """A run under way: the prompt's tokens, and the cache, which may hold a beginning of them.

    The cache holds exactly the tokens that were computed, however the run ends. eos: ids that end the answer.
    logprobs: how many alternatives to report, None for no log probabilities at all. guard None: the answer
    may repeat itself without end.
    """

    model_id: str
    forward: Forward
    kernels: Kernels
    pool: CachePool
    cache: KVCache
    vocabulary: Vocabulary
    eos: frozenset[int]
    prompt: TokenIds
    sampling: Sampling
    stops: list[str]
    logprobs: int | None
    guard: RepetitionGuard | None
    sink: Sink
    cancelled: Event

    def prefill(self) -> Array | None:
        """Run what the cache lacks of the prompt, in chunks; return its logits, None when cancelled."""
        first, total = self.cache.length, len(self.prompt)
        logits: Array | None = None
        remembered = first
        self.sink.prefill(0, total - first)
        for start in range(first, total, self.forward.max_tokens):
            if self.cancelled.is_set():
                return None
            end = min(start + self.forward.max_tokens, total)
            logits = self.forward.run(self.prompt[start:end], self.cache, want_logits=end == total)
            if end == total or end - remembered >= SNAPSHOT_EVERY:
                self.pool.remember(self.cache)
                remembered = end
            self.sink.prefill(end - first, total - first)
        return logits

    def decode(self, logits: Array | None, max_tokens: int) -> tuple[FinishReason, int]:
        """Make the answer from the prompt's logits on; return why it ended and how many tokens were made."""
        answer = Answer(self.vocabulary, self.stops, self.sink, logprobs=self.logprobs is not None)
        history = sampling.History(self.prompt)
        rng = sampling.generator(self.sampling.seed)
        made = 0
        while logits is not None and not self.cancelled.is_set():
            _check(logits)
            token_id = sampling.choose(logits, self.sampling, history, rng, self.kernels)
            made += 1
            if token_id in self.eos:
                answer.finish()
                return "stop", made
            if answer.push(token_id, self._logprob(logits, token_id)):
                return "stop", made
            if self.guard is not None and self.guard.push(token_id):
                answer.finish()
                self.sink.warn(repetition.warning(self.model_id))
                return "stop", made
            if made >= max_tokens:
                answer.finish()
                return "length", made
            history.add(token_id)
            if self.cache.length == self.cache.capacity:
                self.pool.grow(self.cache)
            logits = self.forward.run(np.array([token_id], np.int32), self.cache, want_logits=True)
        return "cancelled", made

    def _logprob(self, logits: Array, token_id: int) -> TokenLogprob | None:
        if self.logprobs is None:
            return None
        logprob, best = sampling.top_logprobs(logits, token_id, self.logprobs, self.kernels)
        top = [TopLogprob(*self.vocabulary.shown(other), value) for other, value in best]
        return TokenLogprob(*self.vocabulary.shown(token_id), logprob, top)


def _check(logits: Array) -> None:
    """Refuse to answer from logits that are no numbers, where the highest would be an arbitrary token."""
    if not np.isfinite(logits.max()):
        raise BackendError(
            "model_corrupt",
            "The model computes no numbers (NaN or infinity): its weights are damaged, or its values leave "
            "the range of its number format. Verify the model's files.",
        )
