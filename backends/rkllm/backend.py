"""A .rkllm model as a backend: from a prompt's spans to text, one answer at a time.

Puts the parts together; each part's concept is in its own file. Threads: `generate` from one thread,
`count_tokens` from any.

What counts as a generated token is as on the hybrid engine: every one, the end-of-answer token included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from packaging.version import Version

from backends import repetition
from backends.base import BackendError, EmbedParams, FinishReason, GenerateParams, Span, Usage
from backends.engine import Cancellation, Sink
from backends.prompts import Context
from backends.repetition import RepetitionGuard
from backends.rkllm import prompt_cache
from backends.rkllm.agreement import check
from backends.rkllm.answer import Answer
from backends.rkllm.capture import Capture
from backends.rkllm.encoder import Encoded, Encoder
from backends.rkllm.measuring import PromptMeter
from backends.rkllm.parameters import Prompt
from backends.rkllm.prompt_cache import PromptCache
from backends.rkllm.run import Ended, Outcome
from backends.rkllm.sampling import sampling_param
from backends.rkllm.session import Session
from backends.spec import ModelInfo, ModelSpec, PromptCacheOptions

if TYPE_CHECKING:
    from backends.rkllm.images import Images

_MB = 1024 * 1024
_NOTHING = Usage(prompt_tokens=0, cached_tokens=0, completion_tokens=0, prefill_ms=0.0, decode_ms=0.0)


class RkllmBackend:
    """A loaded model. See engine.Backend. Owns the session, the capture and the image encoder, if any."""

    def __init__(
        self,
        spec: ModelSpec,
        version: Version,
        encoder: Encoder,
        session: Session,
        capture: Capture,
        images: Images | None = None,
    ) -> None:
        """Check what the library said while loading. Raises BackendError."""
        self._spec = spec
        self._encoder = encoder
        self._session = session
        self._capture = capture
        self._images = images
        self._meter = PromptMeter(session, last_token_cached=spec.rkllm.last_token_cached)
        self._reuse_seen = False
        if images is not None:
            encoder.take_images(images.tokens_each)
        options = spec.rkllm
        strict = options.runtime_check == "strict"
        log = session.log
        warnings = [*session.warnings, *encoder.warnings]
        warnings += [] if images is None else images.warnings(options)
        warnings += check(spec.model_id, log, version, options.runtime, strict=strict)
        self._context = Context(
            spec.model_id, min(spec.context_length, log.context_limit or spec.context_length)
        )
        if self._context.length < spec.context_length:
            warnings.append(
                f"context_length is {spec.context_length}, but the model was converted for "
                f"{self._context.length}, which is used."
            )
        if not session.template_off:
            if encoder.vocab_size is None:
                raise BackendError(
                    "load_failed",
                    f"{spec.model_id} cannot be prompted: the runtime would not switch its own template off. "
                    "Give the entry a tokenizer, so that prompts go in as tokens.",
                )
            warnings.append("The runtime would not switch its own chat template off.")
        if encoder.vocab_size is None:
            warnings.append("Without a tokenizer, prompts are counted by estimate. Name one in the entry.")
        if not spec.eos and spec.embeddings is None:
            warnings.append("No eos is set: only the runtime's own ends an answer, and it may be wrong.")
        if options.prompt_cache is not None:
            warnings += self._prepare_prompt_cache(options.prompt_cache, version)
        self.info = ModelInfo(
            runtime=f"librkllmrt {version}",
            context_length=self._context.length,
            vocab_size=encoder.vocab_size or 0,
            memory_mb=psutil.Process().memory_info().rss // _MB,
            warnings=warnings,
            details=log.details() | ({} if images is None else images.details),
        )

    def count_tokens(self, prompt: Sequence[Span]) -> int:
        """Return a prompt's length in tokens, an estimate without a tokenizer. Raises BackendError."""
        return self._encoder.encode(prompt, self._context).tokens

    def generate(
        self, params: GenerateParams, sink: Sink, cancelled: Cancellation
    ) -> tuple[FinishReason, Usage]:
        """Make one answer. See engine.Backend."""
        self._refuse_unsupported(params)
        if cancelled.is_set():
            return "cancelled", _NOTHING
        encoded = self._encoder.encode(params.prompt, self._context)
        if self._room(encoded.tokens) < 1:
            raise self._context.refusal(encoded.tokens if encoded.exact else f"about {encoded.tokens}")
        wanted = self._spec.max_tokens if params.max_tokens is None else params.max_tokens
        if params.adapter is not None:
            self._session.add_adapter(params.adapter)
        sink.prefill(0, encoded.tokens)  # not before: until then a worker that dies died of the adapter
        prompt: Prompt = encoded.prompt
        if self._images is not None and encoded.images:
            with_images = self._images.prompt(encoded, params, sink, cancelled)
            if with_images is None:
                return "cancelled", _NOTHING
            prompt = with_images
        measuring = None
        if self._is_to_measure(encoded, wanted):
            measuring, tokens = self._meter.measure(prompt, cancelled, params.adapter, params.owner)
            if tokens is not None:
                encoded = self._measured(encoded, tokens)
            if cancelled.is_set():
                return "cancelled", self._usage(encoded, measuring, 0, 1)
            if self._room(encoded.tokens) < 1:
                raise self._context.refusal(encoded.tokens)
            sink.prefill(0, encoded.tokens)  # should it have to begin anew, it has its own time for that
        # A limit that the worst case leaves is sure, whatever was guessed.
        limit = min(wanted, max(self._room(encoded.tokens), self._room(encoded.most)))
        # An adapter has stops of its own, which come with each request.
        own_stops = self._spec.stop if params.adapter is None else []
        stops = [*self._encoder.stops, *own_stops, *params.stop]
        guard = RepetitionGuard() if self._spec.repeat_guard else None
        answer = Answer(self._encoder.eos, stops, sink, encoded.tokens, guard)
        outcome = self._session.run(
            prompt,
            sampling_param(params.sampling, self._encoder.vocab_size),
            limit,
            answer.push,
            cancelled,
            params.adapter,
            params.owner,
        )
        if measuring is not None:
            self._see_reuse(outcome, encoded, sink)
            outcome = outcome.behind(measuring)
        if outcome.ended in (Ended.ITSELF, Ended.EOS, Ended.REPEATS):
            answer.finish()
        if outcome.ended is Ended.REPEATS:
            sink.warn(repetition.warning(self._spec.model_id))
        usage = self._usage(encoded, outcome, answer.made, limit)
        return _finish_reason(outcome, usage.completion_tokens, limit), usage

    def embed(
        self, params: EmbedParams, sink: Sink, cancelled: Cancellation
    ) -> tuple[FinishReason, Usage, list[bytes]]:
        """Make embeddings. See engine.Embedder."""
        if self._spec.embeddings is None:
            raise BackendError(
                "unsupported_parameter", f"{self._spec.model_id} makes no embeddings.", "model"
            )
        from backends.rkllm.embedding import EmbeddingRun  # brings numpy, 20 MB, for such models only

        run = EmbeddingRun(
            model_id=self._spec.model_id,
            options=self._spec.embeddings,
            encoder=self._encoder,
            session=self._session,
            context=self._context,
            limit=self._context.length - self._spec.rkllm.context_reserve,
        )
        return run.embed(params, sink, cancelled)

    def close(self) -> None:
        """Give back the model, the image encoder and the process's output."""
        if self._images is not None:
            self._images.close()
        self._session.close()
        self._capture.close()

    def _prepare_prompt_cache(self, options: PromptCacheOptions, version: Version) -> list[str]:
        """Fill the KV cache with the fixed beginning of prompts. Returns warnings."""
        if not self._session.has_prompt_cache:
            return ["prompt_cache has no effect: this runtime library has no such functions."]
        try:
            encoded = self._encoder.encode(options.prefix, self._context)
        except BackendError as error:
            return [f"prompt_cache has no effect: {error.message}"]
        if encoded.tokens < prompt_cache.FEWEST_TOKENS:
            return [
                "prompt_cache has no effect: chats begin with nothing that is always the same. Set "
                "template_options: {default_system: ...} in the entry."
            ]
        most = min(prompt_cache.MOST_TOKENS, self._context.length - self._spec.rkllm.context_reserve)
        if encoded.tokens > most:
            return [f"prompt_cache has no effect: the fixed prompt has {encoded.tokens} tokens, over {most}."]
        model = Path(self._spec.path)
        try:
            key = prompt_cache.cache_key(str(version), model, self._context.length, encoded.prompt)
        except OSError as error:
            return [f"prompt_cache has no effect: {model} cannot be seen any more ({error.strerror})."]
        warning = PromptCache(Path(options.directory), key).prepare(self._session, encoded.prompt)
        return [] if warning is None else [warning]

    def _room(self, prompt_tokens: int) -> int:
        """Return how many tokens an answer may have behind so many of a prompt."""
        return self._context.length - self._spec.rkllm.context_reserve - prompt_tokens

    def _is_to_measure(self, encoded: Encoded, wanted: int) -> bool:
        """Return whether an answer of so many tokens could overflow the context, for all that is known.

        One token never does: the library takes no prompt that leaves no room for it.
        """
        unsure = not (encoded.exact or encoded.measured) and self._room(encoded.most) < wanted
        return unsure and wanted > 1 and self._spec.rkllm.measure_prompts and self._meter.possible

    def _measured(self, encoded: Encoded, tokens: int) -> Encoded:
        """Return a prompt with the size that it was seen to have.

        It is right to within one, and as much is left behind an answer: its last token needs no room.
        """
        self._encoder.measured(encoded, tokens)
        return replace(encoded, tokens=tokens, most=tokens, measured=True)

    def _see_reuse(self, outcome: Outcome, encoded: Encoded, sink: Sink) -> None:
        """Tell the owner, once, where measuring prompts costs as much as computing them."""
        again = outcome.prefilled or 0
        if not self._reuse_seen and outcome.tokens and again > encoded.tokens // 2:
            self._reuse_seen = True
            sink.warn(
                f"{self._spec.model_id} computes a prompt twice where it might not fit: the runtime does not "
                "use what it has computed to count it. A tokenizer in the entry counts without; rkllm: "
                "{measure_prompts: false} lets prompts be estimated, and an answer may overflow the context."
            )

    def _usage(self, encoded: Encoded, outcome: Outcome, made: int, limit: int) -> Usage:
        """Return the counts of a run.

        Cached are the prompt's tokens that were not prefilled. None are claimed where the library did not say
        how many were, or they may be another client's; nor is one that may be an error in the prompt's
        measured size. A run that ended by itself may have made an EOS token that it did not show.
        """
        perf, prefilled = outcome.perf, outcome.prefilled
        prompt_tokens = encoded.tokens
        if not encoded.exact:
            if outcome.cut_in_prefill:
                prefilled = None  # of how many is not known
            elif (tokens := self._meter.after(outcome, limit)) is not None:
                prompt_tokens = self._measured(encoded, tokens).tokens
            else:
                prompt_tokens = prefilled or encoded.tokens
        if perf is not None and outcome.ended is Ended.ITSELF:
            made = max(made, perf.generate_tokens)
        cached = 0 if prefilled is None or outcome.foreign else max(0, prompt_tokens - prefilled)
        return Usage(
            prompt_tokens=prompt_tokens,
            cached_tokens=cached if encoded.exact or cached > 1 else 0,
            completion_tokens=made,
            prefill_ms=1000 * outcome.prefill_s,
            decode_ms=1000 * outcome.decode_s,
        )

    def _refuse_unsupported(self, params: GenerateParams) -> None:
        sampling = params.sampling
        asked = {
            "min_p": sampling.min_p > 0,
            "logit_bias": bool(sampling.logit_bias),
            "logprobs": params.logprobs is not None,
            "messages": bool(params.images) and self._images is None,
        }
        for param, is_asked in asked.items():
            if is_asked:
                what = {"messages": "images"}.get(param, param)
                raise BackendError(
                    "unsupported_parameter",
                    f"{self._spec.model_id} runs on librkllmrt, which cannot honour {what} here: leave "
                    "it out.",
                    param,
                )


def _finish_reason(outcome: Outcome, made: int, limit: int) -> FinishReason:
    """Infer why an answer ended: the library does not say."""
    if outcome.ended is Ended.CANCELLED:
        return "cancelled"
    if outcome.ended is Ended.ITSELF and made >= limit:
        return "length"
    return "stop"
