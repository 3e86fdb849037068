"""A model on a scripted library: runs that are cancelled, and runs that fail."""

from __future__ import annotations

import threading
import time

import pytest

from backends.base import BackendError, EngineLost, GenerateParams, Image, Sampling
from backends.engine import Cancellation
from backends.rkllm.session import ABORT_AGAIN_S
from backends.spec import ModelSpec
from tests.backends.rkllm.asking import ABC, CHAT, Start, ask, without_tokenizer
from tests.backends.rkllm.conftest import (
    ERROR,
    NORMAL,
    NULL_RESULT,
    PRINT,
    RETURN,
    WAIT_FOR_ABORT,
    WAIT_FOR_ABORT_CALL,
    ListSink,
    Scripted,
)


def test_cancelled_in_prefill(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    scripted.script((WAIT_FOR_ABORT, 0, None))
    cancelled = Cancellation()
    backend = start(spec)
    timer = threading.Timer(0.05, cancelled.set)
    timer.start()
    text, reason, usage = ask(backend, cancelled=cancelled)
    timer.join()
    assert (text, reason, usage.completion_tokens) == ("", "cancelled", 0)
    assert scripted.get("aborts") == 1


def test_cancelled_while_tokens_come(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    scripted.script(*((NORMAL, 10, b"a") for _ in range(20)), (WAIT_FOR_ABORT, 0, None))
    cancelled = Cancellation()

    def cancel(text: str) -> None:
        if len(sink.texts) == 3:
            cancelled.set()

    sink = ListSink(cancel)
    text, reason, usage = ask(start(spec), cancelled=cancelled, sink=sink)
    assert (text, reason, usage.completion_tokens) == ("aaa", "cancelled", 3)


def test_an_abort_that_came_before_the_run_began_is_repeated(
    scripted: Scripted, spec: ModelSpec, start: Start
) -> None:
    scripted.set("deaf_aborts", 1)
    scripted.script(
        (WAIT_FOR_ABORT_CALL, 0, None), *((NORMAL, 10, b"a") for _ in range(5)), (WAIT_FOR_ABORT, 0, None)
    )
    cancelled = Cancellation()
    backend = start(spec)
    timer = threading.Timer(0.05, cancelled.set)
    timer.start()
    began = time.monotonic()
    text, reason, _ = ask(backend, cancelled=cancelled)
    timer.join()
    assert (text, reason) == ("", "cancelled")
    assert scripted.get("aborts") == 2
    assert time.monotonic() - began < ABORT_AGAIN_S  # the first token asks again; nobody waits for it


def test_cancelled_before_it_begins(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    cancelled = Cancellation()
    cancelled.set()
    assert ask(start(spec), cancelled=cancelled)[1] == "cancelled"
    assert scripted.get("runs") == 0


def test_a_failure_in_the_callback_ends_the_run_and_comes_out(
    scripted: Scripted, spec: ModelSpec, start: Start
) -> None:
    def fail(text: str) -> None:
        raise ConnectionError("the client is gone")

    scripted.script((NORMAL, 10, b"a"), (WAIT_FOR_ABORT, 0, None))
    backend = start(spec)
    with pytest.raises(ConnectionError):
        ask(backend, sink=ListSink(fail))
    scripted.answer(*ABC)
    assert ask(backend)[0] == "abc"


def test_a_prompt_the_runtime_finds_too_long(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    line = b"E rkllm: prompt gather than max context (prompt: 1299 tokens, max context: 1020)"
    scripted.script((PRINT, 0, line), (NULL_RESULT, ERROR, None), (RETURN, -1, None))
    backend = start(without_tokenizer(spec))
    with pytest.raises(BackendError, match="1299") as caught:
        ask(backend)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    scripted.answer(*ABC)
    assert ask(backend)[0] == "abc"


@pytest.mark.parametrize("status", [0, -1])
def test_a_fatal_line_costs_the_process(
    scripted: Scripted, spec: ModelSpec, start: Start, status: int
) -> None:
    scripted.script(
        (NORMAL, 10, b"a"), (PRINT, 0, b"E RKNN: failed to submit!, op id: 1"), (RETURN, status, None)
    )
    with pytest.raises(EngineLost, match="op id: 1"):
        ask(start(spec))


@pytest.mark.parametrize("steps", [[(RETURN, -1, None)], [(NULL_RESULT, ERROR, None)], [(ERROR, 0, None)]])
def test_an_end_nobody_explains_costs_the_process(
    scripted: Scripted, spec: ModelSpec, start: Start, steps: list[tuple[int, int, bytes | None]]
) -> None:
    scripted.script((PRINT, 0, b"strange"), *steps)
    with pytest.raises(EngineLost, match="strange"):
        ask(start(spec))


@pytest.mark.parametrize(
    ("params", "param"),
    [
        (GenerateParams(prompt=CHAT, sampling=Sampling(min_p=0.1)), "min_p"),
        (GenerateParams(prompt=CHAT, sampling=Sampling(logit_bias={1: 2.0})), "logit_bias"),
        (GenerateParams(prompt=CHAT, sampling=Sampling(), logprobs=0), "logprobs"),
        (
            GenerateParams(prompt=CHAT, sampling=Sampling(), images=[Image(b"x", "messages.0.content.0")]),
            "messages",
        ),
    ],
)
def test_what_the_library_cannot_do_is_refused(
    spec: ModelSpec, start: Start, params: GenerateParams, param: str
) -> None:
    with pytest.raises(BackendError) as caught:
        start(spec).generate(params, ListSink(), Cancellation())
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", param)
