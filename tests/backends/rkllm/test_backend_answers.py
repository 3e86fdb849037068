"""A model on a scripted library: where an answer ends, what of it comes out, what is counted."""

from __future__ import annotations

import msgspec
import pytest

from backends.base import Span
from backends.rkllm.structs import RKLLMInferParam
from backends.spec import ModelSpec
from tests.backends.rkllm.asking import ABC, Start, ask, without_tokenizer
from tests.backends.rkllm.conftest import (
    FINISH,
    NORMAL,
    WAIT_FOR_ABORT,
    WAITING,
    ListSink,
    Scripted,
)
from tests.tiny import EOS_TOKEN_ID


def test_characters_and_null_texts(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    scripted.script(
        (NORMAL, 10, b"a"),
        (WAITING, 11, None),
        (WAITING, 12, b"\xe4"),
        (WAITING, 13, b"\xbd"),
        (NORMAL, 14, b"\xa0"),
        (NORMAL, 15, b"\xf0\x9f\x98"),
        (NORMAL, 16, b"\xf0\x9f\x98\x80"),
        (NORMAL, 17, b"\xe4"),
        (FINISH, 0, None),
    )
    sink = ListSink()
    text, reason, usage = ask(start(spec), sink=sink)
    assert sink.texts == ["a", "你", "\U0001f600", "\ufffd"]
    assert (text, reason, usage.completion_tokens, sink.tokens) == ("a你\U0001f600\ufffd", "stop", 8, 8)


def test_our_eos_ends_a_run_that_would_go_on(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    scripted.script(
        (NORMAL, 10, b"a"),
        (NORMAL, EOS_TOKEN_ID, b"<|im_end|>"),
        (NORMAL, 11, b"b"),
        (WAIT_FOR_ABORT, 0, None),
    )
    text, reason, usage = ask(start(spec))
    assert (text, reason, usage.completion_tokens) == ("a", "stop", 2)
    assert scripted.get("aborts") == 1


def test_an_end_that_comes_by_itself_is_not_aborted(
    scripted: Scripted, spec: ModelSpec, start: Start
) -> None:
    scripted.answer((10, b"a"), (EOS_TOKEN_ID, b""), perf=(5, 2))
    backend = start(spec)
    assert ask(backend)[1] == "stop"
    assert scripted.get("aborts") == 0


def test_a_stop_string_ends_a_run_and_never_leaks(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    scripted.script(
        (NORMAL, 10, b"a\n"), (NORMAL, 11, b"\nUs"), (NORMAL, 12, b"er: x"), (WAIT_FOR_ABORT, 0, None)
    )
    text, reason, usage = ask(start(spec), stop=["\n\nUser:"])
    assert (text, reason, usage.completion_tokens) == ("a", "stop", 3)
    assert scripted.get("aborts") == 1


def test_what_only_looked_like_a_stop_string_comes_out(
    scripted: Scripted, spec: ModelSpec, start: Start
) -> None:
    scripted.answer((10, b"a"), (11, b"\n\nUs"))
    assert ask(start(spec), stop=["\n\nUser:"])[0] == "a\n\nUs"


def test_eos_strings_end_answers_without_a_tokenizer(
    scripted: Scripted, spec: ModelSpec, start: Start
) -> None:
    scripted.script(
        (NORMAL, 10, b"a"), (NORMAL, 11, b"<|im_"), (NORMAL, 12, b"end|>"), (WAIT_FOR_ABORT, 0, None)
    )
    assert ask(start(without_tokenizer(spec)))[:2] == ("a", "stop")


def test_the_limit_is_told_from_the_end(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    scripted.script(*((NORMAL, 10, b"a") for _ in range(50)))
    backend = start(spec)
    text, reason, usage = ask(backend, max_tokens=3)
    assert (text, reason, usage.completion_tokens) == ("aaa", "length", 3)
    scripted.answer(*ABC)
    assert ask(backend, max_tokens=4)[1] == "stop"


def test_an_answer_that_only_repeats_itself_ends_and_its_owner_is_told(
    scripted: Scripted, spec: ModelSpec, start: Start
) -> None:
    scripted.script(*((NORMAL, 33, b"!") for _ in range(400)), (WAIT_FOR_ABORT, 0, None))
    sink = ListSink()
    text, reason, usage = ask(start(spec), max_tokens=450, sink=sink)
    assert (text, reason, usage.completion_tokens) == ("!" * 288, "stop", 288)
    (warning,) = sink.warnings
    for thing in ("version of the runtime", "chat template", "sha256"):
        assert thing in warning


def test_a_runtime_that_does_not_tell_ids_does_not_seem_to_repeat_one(
    scripted: Scripted, spec: ModelSpec, start: Start
) -> None:
    scripted.answer(*((0, b"%d " % number) for number in range(400)))
    sink = ListSink()
    text, _, _ = ask(start(spec), max_tokens=450, sink=sink)
    assert text.split() == [str(number) for number in range(400)]
    assert sink.warnings == []


def test_the_guard_can_be_off(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    scripted.answer(*((33, b"!") for _ in range(400)))
    sink = ListSink()
    text, _, _ = ask(start(msgspec.structs.replace(spec, repeat_guard=False)), max_tokens=450, sink=sink)
    assert (text, sink.warnings) == ("!" * 400, [])


def test_cached_tokens_are_those_not_prefilled(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    scripted.answer(*ABC, perf=(5, 4))
    sink = ListSink()
    _, _, usage = ask(start(spec), prompt=[Span("x" * 30, True)], sink=sink)
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (30, 25, 4)
    assert sink.prefills == [(0, 30), (30, 30)]


@pytest.mark.parametrize(
    ("kv_size", "prefilled", "prompt_tokens", "cached"),
    [(43, 40, 40, 0), (43, 5, 40, 35), (44, 40, 41, 0), (-1, 40, 40, 0)],
)
def test_text_prompts_are_counted_by_the_cache(
    scripted: Scripted,
    spec: ModelSpec,
    start: Start,
    kv_size: int,
    prefilled: int,
    prompt_tokens: int,
    cached: int,
) -> None:
    scripted.answer(*ABC, perf=(prefilled, 3))
    scripted.set("kv_size", kv_size)
    _, _, usage = ask(start(without_tokenizer(spec)))
    assert (usage.prompt_tokens, usage.cached_tokens) == (prompt_tokens, cached)


def test_a_longer_chat_is_measured_by_the_shorter_one(
    scripted: Scripted, spec: ModelSpec, start: Start
) -> None:
    scripted.answer(*ABC, perf=(300, 3))
    scripted.set("kv_size", 303)
    backend = start(without_tokenizer(spec))
    begin = [Span("word " * 290, True)]  # 1,450 characters, about 484 tokens by these
    ask(backend, prompt=begin)
    assert 300 <= backend.count_tokens(begin) <= 302
    ask(backend, prompt=[*begin, Span("and more", True)], max_tokens=1000)
    assert 512 - 4 - 310 <= scripted.struct("infer", RKLLMInferParam).max_new_tokens <= 512 - 4 - 300
