"""Whole answers of a small random model: what is computed once and used again, by whom, and correctly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backends.base import BackendError, Sampling, Span
from backends.engine import Backend
from backends.hybrid.backend import HybridBackend
from backends.hybrid.cache_pool import CachePool
from backends.hybrid.kv_cache import KVCache
from backends.hybrid.meta import META_FILE
from backends.spec import HybridOptions
from tests.backends.hybrid.asking import PROMPT, Recorder, answer, open_model
from tests.tiny import EOS_TOKEN_ID, WORDS, tiny_folder


def test_a_second_run_reuses_the_prompt_and_says_the_same(model: Backend) -> None:
    first = answer(model, PROMPT)
    second = answer(model, PROMPT)
    assert second[0] == first[0]
    assert second[2].cached_tokens == first[2].prompt_tokens - 1


def test_a_prompt_of_another_owner_is_not_cached(model: Backend) -> None:
    cached = [answer(model, PROMPT, owner=owner)[2].cached_tokens > 0 for owner in ("a", "b", "a", "b")]
    assert cached == [False, False, True, True]


def test_a_seed_says_the_same_once_the_prompt_is_cached(model: Backend) -> None:
    for seed in range(12):
        settings = Sampling(temperature=1.0, top_p=0.95, seed=seed)
        prompt = PROMPT.replace("capital", "capital " * seed)
        texts = [answer(model, prompt, sampling=settings, max_tokens=24)[0] for _ in range(3)]
        assert texts[0] == texts[1] == texts[2]


def test_a_growing_answer_makes_idle_caches_go_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only when it ends: meanwhile the machine would hold more than cache_mb."""
    most = 0
    append = KVCache.append

    def watched(cache: KVCache, *arguments: Any) -> Any:
        nonlocal most
        result = append(cache, *arguments)
        most = max(most, pool.idle_bytes + cache.size_bytes)
        return result

    model = open_model(folder, hybrid=HybridOptions(cache_mb=1))
    assert isinstance(model, HybridBackend)
    pool = model._pool
    monkeypatch.setattr(KVCache, "append", watched)
    for name in WORDS.split()[:12]:
        answer(model, f"{name} hello world " * 100, max_tokens=1)
    assert most > 900_000
    sampling = Sampling(temperature=0, logit_bias={EOS_TOKEN_ID: -1e6})
    _, reason, _ = answer(model, "short", sampling=sampling, max_tokens=300)
    assert reason == "length"
    assert most <= 1024 * 1024


def test_a_second_turn_prefills_only_what_is_new(model: Backend, folder: Path) -> None:
    long = PROMPT.replace("capital", "capital of the world " * 12)
    text, _, first = answer(model, long, max_tokens=9)
    turn = long + text + "<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n"
    sink = Recorder()
    again, _, second = answer(model, turn, sink)
    # Whether the answer's own text comes back as the same tokens is the tokenizer's business.
    assert first.prompt_tokens <= second.cached_tokens
    assert sink.prefills[-1] == (second.prompt_tokens - second.cached_tokens,) * 2
    fresh, _, uncached = answer(open_model(folder), turn)
    assert uncached.cached_tokens == 0
    assert again == fresh


def test_three_conversations_in_turn(model: Backend, folder: Path) -> None:
    system = "<|im_start|>system\n" + "you are helpful " * 10 + "<|im_end|>\n"
    chats = [f"{system}{name} " + f"{name} said hello " * 9 for name in ("one", "two", "three")]
    for chat in chats:
        answer(model, chat)
    for chat in chats:
        length = model.count_tokens([Span(chat, True)])
        text, _, usage = answer(model, chat + " and more")
        assert usage.cached_tokens >= length - 1
        assert text == answer(open_model(folder), chat + " and more")[0]


def test_a_long_prompt_can_be_gone_on_with_from_its_middle(tmp_path: Path) -> None:
    """A model with windows, whose caches can only be cut back to snapshots: there is one every 512 tokens."""
    folder = tiny_folder(tmp_path, layers=1, context_length=2048)
    meta = json.loads((folder / META_FILE).read_bytes())
    meta["attention"] = {"sliding": meta["attention"]["full"] | {"window": 20}}
    meta["layers"] = [{"type": "sliding"}]
    (folder / META_FILE).write_text(json.dumps(meta))
    model = open_model(folder, context_length=2048)
    words = " hello world"  # two tokens
    answer(model, words * 700, max_tokens=1)
    for shared, cached in ((450, 512), (300, 512), (550, 1024)):
        prompt = words * shared + " question" * 9
        text, _, usage = answer(model, prompt)
        assert (usage.prompt_tokens, usage.cached_tokens) == (2 * shared + 9, cached)
        assert text == answer(open_model(folder, context_length=2048), prompt)[0]


def test_eviction_costs_time_and_not_correctness(folder: Path) -> None:
    small = open_model(folder, hybrid=HybridOptions(cache_mb=0))
    assert any("cache_mb" in warning for warning in small.info.warnings)
    first = answer(small, PROMPT)
    second = answer(small, PROMPT)
    assert second[2].cached_tokens == 0
    assert first[0] == second[0] == answer(open_model(folder), PROMPT)[0]


def test_no_memory_for_a_prompt_s_cache_costs_that_answer_only(
    model: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = answer(model, PROMPT)[0]
    with monkeypatch.context() as patch:

        def reserve(self: CachePool, *args: Any) -> None:
            raise MemoryError

        patch.setattr(CachePool, "reserve", reserve)
        with pytest.raises(BackendError) as caught:
            answer(model, PROMPT + "again")
        assert caught.value.code == "insufficient_memory"
    assert answer(model, PROMPT)[0] == expected
