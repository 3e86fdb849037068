"""A model on a scripted library: what an entry can say of how the closed library behaves."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from backends.base import Span
from backends.rkllm.structs import RKLLMInferParam
from backends.spec import ModelSpec
from tests.backends.rkllm.asking import ABC, CHAT, Start, ask, options, without_tokenizer
from tests.backends.rkllm.conftest import (
    FINISH,
    NORMAL,
    WAIT_FOR_ABORT,
    Scripted,
)
from tests.tiny import tiny_tokenizer


def test_prompts_as_text_are_counted_by_the_tokenizer(
    scripted: Scripted, spec: ModelSpec, start: Start
) -> None:
    backend = start(options(spec, input="text"))
    scripted.answer(*ABC, perf=(5, 3))
    _, _, usage = ask(backend)
    text = scripted.text("prompt")
    assert text == "<|im_start|>user\nhello <\u200d|im_end|><|im_end|>\n<|im_start|>assistant\n"
    tokens = len(Tokenizer.from_str(tiny_tokenizer()).encode(text, add_special_tokens=False).ids)
    assert (usage.prompt_tokens, usage.cached_tokens) == (tokens, tokens - 5)
    assert backend.count_tokens(CHAT) == tokens
    assert backend.info.vocab_size > 0


@pytest.mark.parametrize("tokenizer", [True, False])
def test_a_bos_that_the_library_adds_is_left_out_and_counted(
    scripted: Scripted, spec: ModelSpec, start: Start, tokenizer: bool
) -> None:
    spec = options(spec, input="text", runtime_bos="<|im_start|>")
    backend = start(spec if tokenizer else without_tokenizer(spec))
    scripted.answer(*ABC, perf=(4, 3))
    scripted.set("kv_size", 9 + 3)
    _, _, usage = ask(backend, prompt=[Span("<|im_start|>", True), Span("hello", False)])
    assert scripted.text("prompt") == "hello"
    hello = len(Tokenizer.from_str(tiny_tokenizer()).encode("hello", add_special_tokens=False).ids)
    assert usage.prompt_tokens == (hello + 1 if tokenizer else 9)


@pytest.mark.parametrize(("cached", "prompt_tokens"), [(False, 20), (True, 19)])
def test_the_last_token_of_a_cut_answer_may_be_in_the_kv_cache(
    scripted: Scripted, spec: ModelSpec, start: Start, cached: bool, prompt_tokens: int
) -> None:
    backend = start(options(without_tokenizer(spec), last_token_cached=cached))
    scripted.answer(*ABC, perf=(4, 3))
    scripted.set("kv_size", 22)
    _, reason, usage = ask(backend, max_tokens=3)
    assert (reason, usage.prompt_tokens) == ("length", prompt_tokens)


@pytest.mark.parametrize("key", [False, True])
def test_the_kv_cache_is_emptied_after_an_abort_only_where_the_entry_says_so(
    scripted: Scripted, spec: ModelSpec, start: Start, key: bool
) -> None:
    backend = start(options(spec, clear_after_abort=key))
    scripted.script((NORMAL, 10, b"stop"), (WAIT_FOR_ABORT, 0, None), (FINISH, 0, None))
    ask(backend, stop=["stop"])
    assert scripted.get("clears") == int(key)
    scripted.answer(*ABC)
    ask(backend)
    assert scripted.get("clears") == int(key)


@pytest.mark.parametrize("reserve", [4, 100])
def test_the_room_of_an_answer_leaves_what_the_library_keeps(
    scripted: Scripted, spec: ModelSpec, start: Start, reserve: int
) -> None:
    backend = start(options(spec, context_reserve=reserve))
    scripted.answer(*ABC)
    _, _, usage = ask(backend, max_tokens=1000)
    limit = scripted.struct("infer", RKLLMInferParam).max_new_tokens
    assert limit == 512 - reserve - usage.prompt_tokens
