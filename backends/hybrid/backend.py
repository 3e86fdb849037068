"""The hybrid engine as a backend: puts its parts together and keeps the caches between answers.

Threads: `generate` from one thread, `count_tokens` from any.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Event

import psutil

from backends.base import BackendError, FinishReason, GenerateParams, Span, Usage
from backends.engine import Backend, Progress, Sink
from backends.hybrid.cache_pool import CachePool
from backends.hybrid.executor import Executor
from backends.hybrid.folder import HybridFolder
from backends.hybrid.forward import Forward
from backends.hybrid.generation import Generation
from backends.hybrid.kernels import Kernels, best_kernels
from backends.hybrid.kv_cache import KVCache
from backends.hybrid.loading import end_tokens, load_executor, load_folder, load_tokenizer
from backends.hybrid.prompts import Prompts
from backends.hybrid.threads import thread_count
from backends.prompts import Context
from backends.repetition import RepetitionGuard
from backends.spec import ModelInfo, ModelSpec
from backends.tokenizer import PromptTokenizer

_MB = 1024 * 1024


def load(spec: ModelSpec, progress: Progress) -> Backend:
    """Load a hybrid folder. Raises BackendError with everything that is in the way.

    `progress` is called from this thread, from 0 to 1.
    """
    progress(0.0, "files")
    folder = load_folder(spec)
    progress(0.05, "tokenizer")
    tokenizer = load_tokenizer(spec, folder)
    eos = end_tokens(spec, folder, tokenizer.vocabulary)
    kernels = best_kernels(thread_count(spec.hybrid.threads))
    executor = load_executor(spec, folder, kernels, lambda done, what: progress(0.1 + 0.85 * done, what))
    try:
        backend = HybridBackend(spec, folder, tokenizer, eos, executor, kernels)
    except BaseException:
        executor.close()
        raise
    progress(1.0, "ready")
    return backend


class HybridBackend:
    """A loaded model. See engine.Backend."""

    def __init__(
        self,
        spec: ModelSpec,
        folder: HybridFolder,
        tokenizer: PromptTokenizer,
        eos: frozenset[int],
        executor: Executor,
        kernels: Kernels,
    ) -> None:
        """Take over the executor, which `close` closes. Raises BackendError(model_corrupt)."""
        meta = folder.meta
        self._spec = spec
        self._eos = eos
        self._executor = executor
        self._vocabulary = tokenizer.vocabulary
        self._vocab_size = meta.vocab_size
        self._context_length = min(spec.context_length, meta.context_length)
        self._prompts = Prompts(tokenizer, Context(spec.model_id, self._context_length), meta.vocab_size)
        self._kernels = kernels
        self._forward = Forward(
            folder, executor, kv_fp16=spec.hybrid.kv_dtype == "fp16", kernels=self._kernels
        )
        self._pool = CachePool(self._forward.new_cache, spec.hybrid.cache_mb * _MB)
        self.info = ModelInfo(
            runtime=executor.runtime,
            context_length=self._context_length,
            vocab_size=meta.vocab_size,
            memory_mb=psutil.Process().memory_info().rss // _MB,
            warnings=self._warnings(meta.context_length),
            details={"kernels": kernels.name, "variant": folder.variant},
        )

    def count_tokens(self, prompt: Sequence[Span]) -> int:
        """Return a prompt's length in tokens. Raises BackendError(context_length_exceeded) if hopeless."""
        return self._prompts.count(prompt)

    def generate(self, params: GenerateParams, sink: Sink, cancelled: Event) -> tuple[FinishReason, Usage]:
        """Make one answer. See engine.Backend."""
        self._refuse_unsupported(params)
        prompt = self._prompts.encode(params.prompt)
        wanted = self._spec.max_tokens if params.max_tokens is None else params.max_tokens
        max_tokens = min(wanted, self._context_length - len(prompt))
        cache: KVCache | None = None
        try:
            cache = self._pool.take(prompt, params.owner)
            cached_tokens = cache.length
            run = Generation(
                model_id=self._spec.model_id,
                forward=self._forward,
                kernels=self._kernels,
                pool=self._pool,
                cache=cache,
                vocabulary=self._vocabulary,
                eos=self._eos,
                prompt=prompt,
                sampling=params.sampling,
                stops=[*self._spec.stop, *params.stop],
                logprobs=params.logprobs,
                guard=RepetitionGuard() if self._spec.repeat_guard else None,
                sink=sink,
                cancelled=cancelled,
            )
            began = time.perf_counter()
            logits = run.prefill()
            prefilled = time.perf_counter()
            reason, made = run.decode(logits, max_tokens)
            ended = time.perf_counter()
        except MemoryError as error:
            raise BackendError(
                "insufficient_memory",
                f"There is no memory left for a context of {len(prompt)} tokens. Shorten the conversation, "
                "or lower cache_mb or the number of loaded models.",
            ) from error
        finally:
            if cache is not None:
                self._pool.give_back(cache)
        return reason, Usage(
            prompt_tokens=len(prompt),
            cached_tokens=cached_tokens,
            completion_tokens=made,
            prefill_ms=1000 * (prefilled - began),
            decode_ms=1000 * (ended - prefilled),
        )

    def close(self) -> None:
        """Give back sessions and caches. Nothing may be called afterwards."""
        self._executor.close()
        del self._pool, self._forward  # their calls hold sessions too

    def _refuse_unsupported(self, params: GenerateParams) -> None:
        """Raise BackendError for what this model or this engine cannot honour."""
        if params.images:
            raise BackendError("unsupported_parameter", f"{self._spec.model_id} takes no images.", "messages")
        if params.adapter is not None:
            raise BackendError(
                "unsupported_parameter",
                f"{self._spec.model_id} runs on the hybrid engine, which has no adapters.",
            )
        if params.max_tokens is not None and params.max_tokens < 1:
            raise BackendError(
                "invalid_request", f"max_tokens is {params.max_tokens}, but must be at least 1.", "max_tokens"
            )
        for token_id in params.sampling.logit_bias:
            if not 0 <= token_id < self._vocab_size:
                raise BackendError(
                    "invalid_request",
                    f"logit_bias names token {token_id}, but the ids of {self._spec.model_id} go from 0 to "
                    f"{self._vocab_size - 1}.",
                    "logit_bias",
                )

    def _warnings(self, model_context: int) -> list[str]:
        warnings = []
        if self._spec.context_length > model_context:
            warnings.append(
                f"context_length is {self._spec.context_length}, but the model was made for "
                f"{model_context}, which is used."
            )
        whole = self._forward.new_cache().bytes_for(self._context_length)
        if whole > self._spec.hybrid.cache_mb * _MB:
            warnings.append(
                f"cache_mb is {self._spec.hybrid.cache_mb}, but a full context takes {whole // _MB + 1} MB: "
                "longer conversations are computed anew each turn."
            )
        if not self._eos:
            warnings.append("No token ends an answer: set eos, or every answer runs to its limit.")
        return warnings
