"""A converted model of the oracle's, run by the engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from backends.hybrid.cache_pool import CachePool
from backends.hybrid.folder import read_folder
from backends.hybrid.forward import Forward
from backends.hybrid.kernels import NUMPY, Kernels
from backends.hybrid.kv_cache import KVCache
from backends.hybrid.meta import License
from backends.hybrid.ort import OrtExecutor
from convert.writer import Papers
from tests.backends.hybrid.test_forward import FixedLengths
from tests.oracle.architectures import ANSWER_TOKENS, STEPS, Conversation
from tests.tiny import tiny_tokenizer

TOLERANCE = 1e-3


CHUNK = 32


class Engine:
    """A converted model with its caches."""

    def __init__(
        self,
        folder: Path,
        *,
        kv_fp16: bool = False,
        lengths: Sequence[int] = (),
        kernels: Kernels = NUMPY,
    ) -> None:
        """lengths: the only ones that calls may have, as on the NPU; else any."""
        read = read_folder(folder)
        executor = OrtExecutor(read, 1, lambda done, what: None)
        fixed = FixedLengths(executor, lengths) if lengths else executor
        self.forward = Forward(read, fixed, kv_fp16=kv_fp16, kernels=kernels)
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


def papers(name: str) -> Papers:
    """What goes with a model whose weights are random."""
    return Papers(
        name=name,
        tokenizer=tiny_tokenizer(),
        chat_template=None,
        eos_token_ids=[2],
        license=License(id="MIT", notice="random weights"),
        source={},
        lengths=(1, 8, CHUNK),
    )
