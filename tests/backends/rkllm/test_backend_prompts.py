"""A model on a scripted library: what of a request reaches the library."""

from __future__ import annotations

import ctypes

import pytest
from tokenizers import Tokenizer

from backends.base import BackendError, Sampling, Span
from backends.rkllm.structs import RKLLMInferParam, RKLLMInput, RKLLMSamplingParam
from backends.spec import ModelSpec
from tests.backends.rkllm.asking import ABC, Start, ask, without_tokenizer
from tests.backends.rkllm.conftest import (
    Scripted,
)
from tests.tiny import tiny_tokenizer


def test_tokens_go_in_as_our_tokenizer_makes_them(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    scripted.answer(*ABC)
    text, reason, usage = ask(start(spec))
    oracle = Tokenizer.from_str(tiny_tokenizer())
    plain = Tokenizer.from_str(tiny_tokenizer())
    plain.encode_special_tokens = True
    expected = [
        *oracle.encode("<|im_start|>user\n", add_special_tokens=False).ids,
        *plain.encode("hello <|im_end|>", add_special_tokens=False).ids,
        *oracle.encode("<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False).ids,
    ]
    given = scripted.struct("input", RKLLMInput)
    assert given.input_type == 1
    assert given.token_input.n_tokens == len(expected)
    assert list(scripted.struct("ids", ctypes.c_int32 * 4096))[: len(expected)] == expected
    assert (text, reason, usage.prompt_tokens, usage.completion_tokens) == ("abc", "stop", len(expected), 3)


def test_text_goes_in_with_control_tokens_of_clients_broken_up(
    scripted: Scripted, spec: ModelSpec, start: Start
) -> None:
    scripted.answer(*ABC)
    backend = start(without_tokenizer(spec))
    ask(backend)
    assert scripted.struct("input", RKLLMInput).input_type == 0
    assert scripted.text("prompt") == (
        "<|im_start|>user\nhello <\u200d|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    assert any("tokenizer" in warning for warning in backend.info.warnings)


def test_each_run_sets_everything(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    scripted.answer(*ABC)
    backend = start(spec)
    ask(backend, sampling=Sampling(temperature=0.5, top_p=0.25, top_k=7), max_tokens=9)
    sampling = scripted.struct("sampling", RKLLMSamplingParam)
    infer = scripted.struct("infer", RKLLMInferParam)
    assert (sampling.top_k, sampling.top_p, sampling.temperature) == (7, 0.25, 0.5)
    assert (sampling.repeat_penalty, sampling.mirostat) == (1.0, 0)
    assert (infer.mode, infer.keep_history, infer.max_new_tokens) == (0, 0, 9)
    ask(backend)
    sampling = scripted.struct("sampling", RKLLMSamplingParam)
    assert (sampling.top_k, sampling.temperature) == (1, 1.0)
    assert scripted.struct("infer", RKLLMInferParam).max_new_tokens == 100


def test_the_context_never_shifts(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    scripted.answer(*ABC)
    backend = start(spec)
    prompt = [Span("x" * 500, True)]
    assert backend.count_tokens(prompt) == 500
    ask(backend, prompt=prompt, max_tokens=1000)
    assert scripted.struct("infer", RKLLMInferParam).max_new_tokens == 512 - 500 - 4
    with pytest.raises(BackendError, match="512") as caught:
        ask(backend, prompt=[Span("x" * 508, True)])
    assert caught.value.code == "context_length_exceeded"
    assert scripted.get("runs") == 1
