"""Every architecture, converted and run by the engine, answers what transformers answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from backends.hybrid.cache_pool import CachePool
from backends.hybrid.folder import read_folder
from backends.hybrid.forward import Forward
from backends.hybrid.kv_cache import KVCache
from backends.hybrid.ort import OrtExecutor
from convert.hf import convert_hf
from tests.convert.checkpoints import write_checkpoint
from tests.oracle.architectures import ANSWER_TOKENS, STEPS, Conversation, models

TOLERANCE = 1e-3
CHUNK = 32

NAMES = sorted(models())


class Engine:
    """A converted model with its caches."""

    def __init__(self, folder: Path, *, kv_fp16: bool = False) -> None:
        read = read_folder(folder)
        self.meta = read.meta
        self.forward = Forward(read, OrtExecutor(read, 1, lambda done, what: None), kv_fp16=kv_fp16)
        self.pool = CachePool(self.forward.new_cache, 64 * 1024 * 1024)

    def logits(self, prompt: Sequence[int], cache: KVCache, sizes: Sequence[int] = ()) -> np.ndarray:
        """Run what the cache lacks of a prompt: calls of the given sizes first, then chunks."""
        ids = np.array(prompt, np.int32)
        left = [*sizes]
        logits = None
        while cache.length < len(ids):
            start = cache.length
            end = min(len(ids), start + (left.pop(0) if left else CHUNK))
            logits = self.forward.run(ids[start:end], cache, want_logits=end == len(ids))
        assert logits is not None
        return logits

    def answer(self, prompt: Sequence[int], expected: Conversation) -> int:
        """Answer from the pool's caches, token by token, and compare; return how much was cached."""
        cache = self.pool.take(np.array(prompt, np.int32))
        cached = cache.length
        np.testing.assert_array_equal(cache.token_ids, prompt[:cached])
        logits = self.logits(prompt, cache)
        self.pool.remember(cache)
        for step in range(ANSWER_TOKENS):
            if step in STEPS:
                difference = np.abs(logits - expected.logits[STEPS.index(step)]).max()
                assert difference < TOLERANCE, f"step {step}: {difference}"
            token_id = int(logits.argmax())
            assert token_id == expected.answer[step], f"step {step}"
            if step < ANSWER_TOKENS - 1:
                got = self.forward.run(np.array([token_id], np.int32), cache, want_logits=True)
                assert got is not None
                logits = got
        self.pool.give_back(cache)
        return cached


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("architectures")
    made = {}
    for name in NAMES:
        checkpoint = write_checkpoint(directory / name, models()[name], parts=1 + len(name) % 3)
        made[name] = convert_hf(checkpoint, directory / "folders" / name, lengths=(1, 8, CHUNK))
    return made


@pytest.mark.parametrize("name", NAMES)
def test_conversations_in_turn(name: str, folders: dict[str, Path]) -> None:
    """A chat, another, the chat's second turn, an edit in each part of its history, and the first again."""
    engine = Engine(folders[name])
    conversations = models()[name].conversations
    first = len(conversations["first"].prompt)
    cached = {}
    for key in ("first", "short", "second_turn", "edit_in_answer", "edit_in_prompt", "first"):
        cached[key] = engine.answer(conversations[key].prompt, conversations[key])
    assert cached["second_turn"] == first + ANSWER_TOKENS - 1
    whole = all(rows.reach is None for rows in engine.forward.new_cache()._shapes)
    # With windows or convolutions the history goes on from the snapshot at the first prompt's end.
    assert cached["edit_in_answer"] == (145 if whole else first)
    assert cached["edit_in_prompt"] == (60 if whole else 0)
    assert cached["first"] == first - 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sizes", [(1, 2, 31, 5), (32,), (7,) * 17, (1,) * 40])
def test_a_prompt_may_be_cut_anyhow(name: str, sizes: tuple[int, ...], folders: dict[str, Path]) -> None:
    engine = Engine(folders[name])
    expected = models()[name].conversations["first"]
    logits = engine.logits(expected.prompt, engine.forward.new_cache(), sizes)
    np.testing.assert_allclose(logits, expected.logits[0], atol=TOLERANCE)
