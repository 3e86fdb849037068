"""The stand-in's KV cache: what a prompt finds there, in which modes, after edits, pauses and aborts."""

import ctypes
from pathlib import Path

import pytest

from tests.standin.conftest import Load
from tests.standin.rkllm.model_file import calls
from tests.standin.rkllm_client import Client, Seen


def prefilled(client: Client, prompt: str | list[int], *, keep_history: int = 0) -> int:
    assert client.run(prompt, keep_history=keep_history) == 0
    return client.end.perf[1]


def test_a_longer_chat_prefills_only_what_is_new(load: Load, log: Path) -> None:
    client = load(answers=[[[50, "a"], [51, "b"]]])
    assert prefilled(client, [1, 2, 3]) == 3
    assert client.cache_sizes() == [5]
    assert prefilled(client, [1, 2, 3, 50, 51, 258, 9]) == 2
    assert prefilled(client, [1, 2, 3, 50, 77, 258, 9]) == 3  # the answer was edited
    assert prefilled(client, [8, 8]) == 2  # another chat evicts this one
    assert prefilled(client, [1, 2, 3]) == 3
    assert prefilled(client, [1, 2, 3]) == 1  # the last token is always computed
    ends = calls(log, "run_end")
    assert [(end["prefilled"], end["reused"]) for end in ends[:2]] == [(3, 0), (2, 5)]


def test_prompts_as_text_too(load: Load) -> None:
    client = load(answers=["Yes."])
    assert prefilled(client, "Q one\nA:") == 5
    assert prefilled(client, "Q one\nA:Yes.\nQ two\nA:") == 6
    assert prefilled(client, "Q one\nA:\nQ") == 2


@pytest.mark.parametrize(("switch", "text", "ids"), [("prompt", 3, 1), ("token", 1, 3)])
def test_reuse_in_one_mode_only(load: Load, switch: str, text: int, ids: int) -> None:
    client = load(reuse={switch: False}, answers=["a"])
    prefilled(client, "one two three")
    assert prefilled(client, "one two three") == text
    prefilled(client, [1, 2, 3])
    assert prefilled(client, [1, 2, 3]) == ids


def test_no_reuse_after_an_edit(load: Load) -> None:
    client = load(reuse={"after_edit": False}, answers=[[[50, "a"]]])
    prefilled(client, [1, 2, 3])
    assert prefilled(client, [1, 2, 3, 50, 4]) == 1
    assert prefilled(client, [1, 2, 9]) == 3


def test_keep_history_appends(load: Load) -> None:
    client = load(answers=[[[50, "a"]]])
    assert prefilled(client, [1, 2, 3], keep_history=1) == 3
    assert prefilled(client, [1, 2, 3], keep_history=1) == 3
    assert client.cache_sizes() == [8]


def test_what_clears_the_cache(load: Load) -> None:
    client = load(answers=["a"])
    prefilled(client, [1, 2, 3])
    assert client.lib.rkllm_clear_kv_cache(client.handle, 0, None, None) == 0
    assert client.cache_sizes() == [0]
    prefilled(client, [1, 2, 3])
    client.plain_template()
    assert client.cache_sizes() == [0]
    start = (ctypes.c_int * 1)(0)
    assert client.lib.rkllm_clear_kv_cache(client.handle, 0, start, start) == -1  # only while a run is paused


def test_the_last_token_may_be_in_the_cache(load: Load) -> None:
    client = load({"max_new": 2}, feed_last=True, answers=["a b c"])
    client.run([1])
    assert client.cache_sizes() == [3]


def test_a_pause_may_lose_the_cache(load: Load) -> None:
    client = load(pause_keeps_cache=False, answers=["a b c"])
    client.on_result = lambda seen, userdata: int(seen.text == b"a")
    client.run([1, 2, 3])
    client.run([9])
    assert client.end.perf[1] == 1
    assert client.cache_sizes() == [3]  # 9, and the rest of the answer


@pytest.mark.parametrize(("cache", "size"), [("keep", 4), ("cleared", 0)])
def test_the_cache_after_an_abort(load: Load, cache: str, size: int) -> None:
    client = load(abort={"cache": cache, "idle": "sticky"}, answers=["a b c"], prefill_us=0)
    client.run([1, 2, 3])
    assert client.lib.rkllm_abort(client.handle) == 0  # sticky: strikes the next run, in prefill
    client.run([1, 2, 3, 97, 4, 5])
    assert client.cache_sizes() == [size]


def test_the_prompt_must_fit(load: Load) -> None:
    refused: list[Seen] = []
    client = load({"context": 12})
    assert client.run([1] * 8) == 0
    assert client.run([1] * 9) == -1
    assert client.seen == refused


def test_bos_is_added_to_text_only(load: Load, log: Path) -> None:
    client = load(bos=1)
    client.run("x")
    client.run([5])
    assert [entry["input"]["ids"] for entry in calls(log, "rkllm_run")] == [[1, ord("x")], [5]]
