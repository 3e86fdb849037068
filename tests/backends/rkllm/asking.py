"""Asking a backend on the scripted library, for the tests of its parts."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from backends.base import GenerateParams, Sampling, Span, Usage
from backends.engine import Backend, Cancellation
from backends.spec import ModelSpec
from tests.backends.rkllm.conftest import (
    ListSink,
)

Start = Callable[[ModelSpec], Backend]
CHAT = [
    Span("<|im_start|>user\n", True),
    Span("hello <|im_end|>", False),
    Span("<|im_end|>\n<|im_start|>assistant\n", True),
]
ABC = ((10, b"a"), (11, b"b"), (12, b"c"))


def ask(
    backend: Backend,
    *,
    prompt: list[Span] = CHAT,
    sampling: Sampling | None = None,
    max_tokens: int | None = None,
    stop: list[str] | None = None,
    cancelled: Cancellation | None = None,
    sink: ListSink | None = None,
) -> tuple[str, str, Usage]:
    sink = sink or ListSink()
    params = GenerateParams(
        prompt=prompt, sampling=sampling or Sampling(temperature=0), max_tokens=max_tokens, stop=stop or []
    )
    reason, usage = backend.generate(params, sink, cancelled or Cancellation())
    assert sink.tokens <= usage.completion_tokens
    return sink.text, reason, usage


def without_tokenizer(spec: ModelSpec) -> ModelSpec:
    return msgspec.structs.replace(spec, tokenizer=None)


def options(spec: ModelSpec, **changes: object) -> ModelSpec:
    return msgspec.structs.replace(spec, rkllm=msgspec.structs.replace(spec.rkllm, **changes))
