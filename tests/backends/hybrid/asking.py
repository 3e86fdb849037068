"""Asking a backend on a small random model, and what the reference says, for the tests of its parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from backends.base import FinishReason, GenerateParams, Sampling, Span, TokenLogprob, Usage
from backends.engine import Backend, Cancellation
from backends.hybrid.backend import load
from backends.hybrid.meta import META_FILE
from backends.spec import ModelSpec
from backends.tokenizer import PromptTokenizer
from tests.backends.hybrid.reference import reference_logits
from tests.tiny import tiny_config, tiny_llama_weights

GREEDY = Sampling(temperature=0)


def spec(folder: Path, **changes: Any) -> ModelSpec:
    settings: dict[str, Any] = {"context_length": 512, "max_tokens": 12, "eos": []} | changes
    return ModelSpec(model_id="tiny", backend="hybrid", path=str(folder), **settings)


def open_model(folder: Path, **changes: Any) -> Backend:
    return load(spec(folder, **changes), lambda done, what: None)


class Recorder:
    """A sink that keeps everything; sets `cancelled` when told to."""

    def __init__(self) -> None:
        self.prefills: list[tuple[int, int]] = []
        self.texts: list[str] = []
        self.warnings: list[str] = []
        self.tokens = 0
        self.logprobs: list[TokenLogprob] = []
        self.cancelled = Cancellation()
        self.cancel_at_prefill: int | None = None
        self.cancel_after_tokens: int | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def prefill(self, done: int, total: int) -> None:
        self.prefills.append((done, total))
        if self.cancel_at_prefill is not None and done >= self.cancel_at_prefill:
            self.cancelled.set()

    def delta(self, text: str, tokens: int, logprobs: list[TokenLogprob] | None) -> None:
        self.texts.append(text)
        self.tokens += tokens
        self.logprobs += logprobs or []
        if self.cancel_after_tokens is not None and self.tokens >= self.cancel_after_tokens:
            self.cancelled.set()

    def warn(self, message: str) -> None:
        self.warnings.append(message)


def answer(
    model: Backend, prompt: str | list[Span], sink: Recorder | None = None, **params: Any
) -> tuple[str, FinishReason, Usage]:
    sink = sink or Recorder()
    spans = [Span(prompt, True)] if isinstance(prompt, str) else prompt
    params = {"sampling": GREEDY} | params
    reason, usage = model.generate(GenerateParams(prompt=spans, **params), sink, sink.cancelled)
    return sink.text, reason, usage


def reference_answer(folder: Path, prompt: str, count: int) -> list[int]:
    """Greedy tokens of the float64 model, with margins that float32 cannot turn over."""
    meta = msgspec.json.decode((folder / META_FILE).read_bytes())
    from backends.hybrid.meta import Meta

    weights = tiny_llama_weights(tiny_config(tied_lm_head=False))
    token_ids = PromptTokenizer(folder / "tokenizer.json").encode([Span(prompt, True)])
    made: list[int] = []
    for _ in range(count):
        logits = reference_logits(msgspec.convert(meta, Meta), weights, [*token_ids, *made])[-1]
        best, second = np.sort(logits)[[-1, -2]]
        assert best - second > 1e-3, "choose another prompt"
        made.append(int(logits.argmax()))
    return made


PROMPT = "<|im_start|>user\nthe capital of this question<|im_end|>\n<|im_start|>assistant\n"
