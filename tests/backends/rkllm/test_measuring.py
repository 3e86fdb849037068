"""Prompts that only the runtime can count, on the stand-in: no answer overflows the context."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.base import BackendError, GenerateParams, Sampling, Span, Usage
from backends.engine import Backend, Cancellation
from backends.spec import ModelSpec, RkllmOptions
from tests.backends.rkllm.asking import ABC, Start, ask, options, without_tokenizer
from tests.backends.rkllm.conftest import ListSink, Scripted
from tests.serving import PATIENCE
from tests.standin.rkllm.build import build
from tests.standin.rkllm.model_file import calls, write_model

CONTEXT, MARGIN = 512, 4
LETTERS = "x" * 350  # 100 tokens by a guess


@dataclass
class Asked:
    """One answer, and what the sink was told on the way."""

    reason: str
    usage: Usage
    sink: ListSink


class Model:
    """A model whose tokens are bytes, which nobody but the library knows."""

    def __init__(self, directory: Path, log: Path, start: Start) -> None:
        self._log = log
        self._start = start
        self._file = directory / "m.rkllm"
        self.script: dict[str, Any] = {
            "tokenizer": "bytes",
            "answers": [{"events": ["y"], "repeat": -1}],
        }
        self.omit: list[str] = []
        self.keys: dict[str, Any] = {}
        self._backend: Backend | None = None
        self._directory = directory

    @property
    def backend(self) -> Backend:
        if self._backend is None:
            write_model(self._file, **self.script)
            library = build("1.3.1", omit=self.omit, into=self._directory / "lib" if self.omit else None)
            self._backend = self._start(
                ModelSpec(
                    model_id="m",
                    backend="rkllm",
                    path=str(self._file),
                    context_length=CONTEXT,
                    max_tokens=1000,
                    eos=["<|im_end|>"],
                    repeat_guard=False,
                    rkllm=RkllmOptions(library=str(library), **self.keys),
                )
            )
        return self._backend

    def ask(
        self,
        text: str,
        *,
        max_tokens: int | None = None,
        owner: str = "",
        cancelled: Cancellation | None = None,
    ) -> Asked:
        sink = ListSink()
        params = GenerateParams(
            prompt=[Span(text, True)],
            sampling=Sampling(temperature=0),
            max_tokens=max_tokens,
            stop=[],
            owner=owner,
        )
        return Asked(*self.backend.generate(params, sink, cancelled or Cancellation()), sink)

    def calls(self, *names: str) -> list[dict[str, Any]]:
        return calls(self._log, *names)

    @property
    def limits(self) -> list[int]:
        return [run["max_new_tokens"] for run in self.calls("rkllm_run")]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Start) -> Model:
    log = tmp_path / "calls.jsonl"
    monkeypatch.setenv("RKLLM_STANDIN_LOG", str(log))
    return Model(tmp_path, log, start)


TEXTS = {
    "letters": LETTERS,
    "words": "the context is full " * 20,
    "chinese": "上下文已滿" * 28,
    "emoji": "\U0001f642" * 100,
    "digits": "1 2 3 " * 70,
}


@pytest.mark.parametrize("feed_last", [False, True])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_the_context_never_shifts(model: Model, text: str, feed_last: bool) -> None:
    model.script["feed_last"] = model.keys["last_token_cached"] = feed_last
    tokens = len(text.encode())
    asked = model.ask(text)
    assert model.calls("context_shift") == []
    room = CONTEXT - MARGIN - tokens
    assert model.limits == [1, room]
    # Of the measuring run nothing is to be seen but in the times.
    assert (asked.reason, asked.sink.text) == ("length", "y" * room)
    assert (asked.usage.prompt_tokens, asked.usage.cached_tokens) == (tokens, 0)
    assert (asked.usage.completion_tokens, asked.sink.tokens) == (room, room)
    assert asked.sink.prefills[-2:] == [(0, tokens), (tokens, tokens)]
    assert [end["prefilled"] for end in model.calls("run_end")] == [tokens, 1]
    assert asked.sink.warnings == []


@pytest.mark.parametrize("wrong", [False, True])
def test_not_even_where_the_key_for_the_last_token_is_wrong(model: Model, wrong: bool) -> None:
    model.script["feed_last"], model.keys["last_token_cached"] = wrong, not wrong
    model.keys["context_reserve"] = MARGIN
    model.ask(LETTERS)
    assert model.calls("context_shift") == []


def test_a_chat_is_measured_where_it_must_be_and_counts_what_it_used_again(model: Model) -> None:
    first = model.ask("a" * 100, max_tokens=100)
    assert model.limits == [100]  # 200 bytes fit
    assert first.usage.prompt_tokens == 100
    longer = "a" * 100 + first.sink.text
    second = model.ask(longer + "b" * 100, max_tokens=300)
    assert model.limits[1:] == [1, CONTEXT - MARGIN - 300]
    # All but the last token made is in the cache.
    assert (second.usage.prompt_tokens, second.usage.cached_tokens) == (300, 199)
    again = model.ask(longer + "b" * 100, max_tokens=300)
    assert model.limits[3:] == [CONTEXT - MARGIN - 300 - 1]  # its size is known
    assert (again.usage.prompt_tokens, again.usage.cached_tokens) == (300, 299)
    assert model.calls("context_shift") == []


def test_one_token_needs_no_measuring(model: Model) -> None:
    asked = model.ask("x" * (CONTEXT - MARGIN), max_tokens=1)
    assert (model.limits, asked.sink.text) == ([1], "y")
    assert model.calls("context_shift") == []


@pytest.mark.parametrize("length", [CONTEXT - MARGIN, CONTEXT, 1000])
def test_a_prompt_found_to_be_too_long_is_refused(model: Model, length: int) -> None:
    with pytest.raises(BackendError, match=f"The prompt has {length} tokens") as caught:
        model.ask("x" * length)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    assert model.limits == [1]
    assert model.ask("Hi", max_tokens=3).sink.text == "yyy"


@pytest.mark.parametrize("abort_clears", [False, True])
def test_a_cancelled_measuring_is_the_end(model: Model, abort_clears: bool) -> None:
    model.script["prefill_us"] = 10_000
    model.keys["clear_after_abort"] = abort_clears
    model.ask("x" * 20, max_tokens=2)  # some of it is in the cache
    before = len(model.calls("rkllm_run"))
    cancelled = Cancellation()

    def leave() -> None:
        deadline = time.monotonic() + 30 * PATIENCE
        while len(model.calls("rkllm_run")) == before and time.monotonic() < deadline:
            threading.Event().wait(0.02)
        cancelled.set()

    client = threading.Thread(target=leave)
    client.start()
    asked = model.ask(LETTERS, cancelled=cancelled)
    client.join()
    assert (asked.reason, asked.sink.text, asked.usage.completion_tokens) == ("cancelled", "", 0)
    assert asked.usage.cached_tokens == 0
    assert model.limits[before:] == [1]
    # What a run has that was cut short is not taken for the prompt's size.
    asked = model.ask(LETTERS)
    assert asked.usage.prompt_tokens == len(LETTERS)
    assert model.calls("context_shift") == []


def test_a_library_that_makes_more_than_one_token_all_the_same(model: Model) -> None:
    model.script["answers"] = [
        {"events": ["y"], "repeat": -1, "ignore_limits": True},
        {"events": ["z"], "repeat": -1},
    ]
    model.script["token_us"] = 1000
    asked = model.ask(LETTERS)
    assert set(asked.sink.text) == {"z"}
    assert abs(asked.usage.prompt_tokens - len(LETTERS)) <= 1
    assert model.calls("context_shift") == []


def test_a_library_that_does_not_tell_the_cache_s_size(model: Model) -> None:
    model.omit = ["rkllm_get_kv_cache_size"]
    model.ask("x" * 100, max_tokens=1)
    asked = model.ask(LETTERS)
    assert model.calls("context_shift") == []
    assert asked.sink.text == "y" * (CONTEXT - MARGIN - len(LETTERS))
    assert (asked.usage.prompt_tokens, asked.usage.cached_tokens) == (len(LETTERS), 0)


def test_another_client_s_prompt_is_not_told_of_by_the_second_run(model: Model) -> None:
    model.omit = ["rkllm_clear_kv_cache"]
    model.ask(LETTERS, owner="one")
    other = model.ask(LETTERS + "x", owner="two")
    assert other.usage.cached_tokens == 0
    assert [end["reused"] for end in model.calls("run_end")][2:] == [len(LETTERS), len(LETTERS)]
    # and what is its own is told of
    asked = model.ask(LETTERS + "xy", owner="two")
    assert asked.usage.cached_tokens > 0


def test_an_owner_is_told_once_of_a_runtime_that_computes_all_of_it_twice(model: Model) -> None:
    model.script["reuse"] = {"prompt": False}
    asked = model.ask(LETTERS)
    assert (asked.usage.prompt_tokens, asked.usage.cached_tokens) == (len(LETTERS), 0)
    (warning,) = asked.sink.warnings
    assert "measure_prompts" in warning and "okenizer" in warning
    assert model.ask(LETTERS + "x").sink.warnings == []
    assert model.calls("context_shift") == []


def test_an_entry_can_say_that_nothing_is_measured(model: Model) -> None:
    model.keys["measure_prompts"] = False
    model.ask(LETTERS, max_tokens=200)
    assert len(model.limits) == 1


def test_a_model_without_a_kv_cache_is_measured_once(
    scripted: Scripted, spec: ModelSpec, start: Start
) -> None:
    scripted.answer(*ABC, perf=(100, 3))
    scripted.set("kv_size", 0)
    backend = start(msgspec.structs.replace(without_tokenizer(spec)))
    prompt = [Span(LETTERS, True)]
    ask(backend, prompt=prompt, max_tokens=300)
    assert scripted.get("runs") == 2
    ask(backend, prompt=prompt, max_tokens=300)
    assert scripted.get("runs") == 3


def test_prompts_that_the_tokenizer_counts_are_not_measured(
    scripted: Scripted, spec: ModelSpec, start: Start
) -> None:
    scripted.answer(*ABC)
    for given in (spec, options(spec, input="text")):
        before = scripted.get("runs")
        ask(start(given), prompt=[Span(LETTERS, True)], max_tokens=300)
        assert scripted.get("runs") == before + 1
