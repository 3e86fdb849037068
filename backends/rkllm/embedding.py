"""Embeddings from the library's last hidden states: texts in, one vector each out.

Puts encoder, session and pooling together. Call from the engine's thread.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from backends import pooling
from backends.base import BackendError, EmbedInput, EmbedParams, EngineLost, FinishReason, Span, Usage
from backends.engine import Cancellation, Sink
from backends.pooling import Pool
from backends.prompts import Context
from backends.rkllm.encoder import Encoded, Encoder
from backends.rkllm.run import Ended
from backends.rkllm.session import Session
from backends.spec import EmbeddingOptions

MOST_TOKENS = 300_000
"""Of all inputs of a request together, as OpenAI has it: they are one turn on the NPU."""


@dataclass(frozen=True)
class EmbeddingRun:
    """How one model embeds. limit: tokens that an input may have."""

    model_id: str
    options: EmbeddingOptions
    encoder: Encoder
    session: Session
    context: Context
    limit: int

    def embed(
        self, params: EmbedParams, sink: Sink, cancelled: Cancellation
    ) -> tuple[FinishReason, Usage, list[bytes]]:
        """Make the vectors. See engine.Embedder."""
        inputs = self._encoded(params.inputs)
        total = sum(encoded.tokens for encoded in inputs)
        if total > MOST_TOKENS:
            raise BackendError(
                "invalid_request",
                f"The inputs have {total} tokens together, and a request may have {MOST_TOKENS}. Send "
                "fewer at once.",
                "input",
            )
        vectors: list[bytes] = []
        prompt_tokens = 0
        seconds = 0.0
        for item, encoded in zip(params.inputs, inputs, strict=True):
            # Each by itself: nothing is heard from the library in between, and whoever watches allows the
            # time of what is said to be left.
            sink.prefill(0, encoded.tokens)
            if cancelled.is_set():
                break
            pool, run_s, ended = self._run(item, encoded, cancelled)
            seconds += run_s
            if ended is Ended.CANCELLED:
                break
            tokens = encoded.tokens if encoded.exact else self._measured(encoded, pool)
            least = tokens if encoded.exact else tokens - 1  # what is measured is right to within one
            vectors.append(self._vector(item, least, pool, params.dimensions))
            prompt_tokens += tokens
        whole = len(vectors) == len(inputs)
        usage = Usage(
            prompt_tokens=prompt_tokens,
            cached_tokens=0,
            completion_tokens=0,
            prefill_ms=1000 * seconds,
            decode_ms=0.0,
        )
        return ("stop", usage, vectors) if whole else ("cancelled", usage, [])

    def _encoded(self, inputs: list[EmbedInput]) -> list[Encoded]:
        """Return all inputs as the library takes them. Raises BackendError for the first that will not do."""
        encoded = []
        for item in inputs:
            try:
                one = self._encode(item)
                if one.tokens > self.limit:
                    raise self.context.refusal(one.tokens if one.exact else f"about {one.tokens}")
            except BackendError as error:
                raise self._refused(item, error) from error
            encoded.append(one)
        return encoded

    def _encode(self, item: EmbedInput) -> Encoded:
        append = self.options.append
        if item.token_ids is None:
            spans = [*item.prompt, Span(append, True)] if append else item.prompt
            return self.encoder.encode(spans, self.context)
        return self.encoder.given(item.token_ids, append)

    def _refused(self, item: EmbedInput, error: BackendError) -> BackendError:
        """Return an encoder's or the library's error as one of an input: those speak of conversations."""
        if error.code != "context_length_exceeded":
            return BackendError(error.code, f"{item.field}: {error.message}", item.field)
        return BackendError(
            error.code,
            f"{item.field} is too long: {self.model_id} embeds texts of up to {self.limit} tokens. Split it. "
            f"({error.message})",
            item.field,
        )

    def _run(self, item: EmbedInput, encoded: Encoded, cancelled: Cancellation) -> tuple[Pool, float, Ended]:
        pool = Pool(self.options)
        # What a prefix left in the cache is used again only at the cost of rows that are not computed, and of
        # a vector that depends a little on what was embedded before.
        if not self.session.clear_kv_cache():
            raise EngineLost(
                "The runtime does not clear its KV cache, so that a vector would depend on earlier texts."
            )
        try:
            outcome = self.session.hidden_states(
                encoded.prompt,
                lambda address, rows, width: pool.take(_array(address, rows, width)),
                cancelled,
            )
        except BackendError as error:
            if error.code == "context_length_exceeded":
                raise self._refused(item, error) from error
            raise
        return pool, outcome.prefill_s + outcome.decode_s, outcome.ended

    def _vector(self, item: EmbedInput, least: int, pool: Pool, dimensions: int | None) -> bytes:
        vector = pool.vector()
        if vector is None:
            raise self._useless(item, "the runtime gave no hidden states")
        if self.options.pooling != "last" and pool.rows < least:
            raise self._useless(
                item,
                f"the runtime gave the hidden states of {pool.rows} of {least} tokens, and pooling: "
                f"{self.options.pooling} needs all",
            )
        pooling.check_dimensions(self.model_id, self.options, dimensions, len(vector))
        result = pooling.finished(vector, self.options, dimensions)
        if result is None:
            raise self._useless(item, "the hidden states hold no usable numbers (NaN, infinity or all zeros)")
        return result.astype("<f4").tobytes()

    def _useless(self, item: EmbedInput, why: str) -> BackendError:
        return BackendError(
            "model_corrupt",
            f"{self.model_id} cannot embed {item.field}: {why}. Check that the file is an embedding model "
            "for this runtime version, and verify it.",
            item.field,
        )

    def _measured(self, encoded: Encoded, pool: Pool) -> int:
        """Return a text's tokens as the KV cache shows them, else as rows came."""
        tokens = max(self.session.kv_cache_size() or 0, pool.rows)
        self.encoder.measured(encoded, tokens)
        return tokens


def _array(address: int, rows: int, width: int) -> pooling.Rows:
    """Return the library's floats as an array, valid as long as they are."""
    pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(pointer, shape=(rows, width))
