"""The engine on the demo model against transformers in fp32: greedy tokens and logits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from backends.hybrid.executor import Array
from backends.hybrid.folder import read_folder
from backends.hybrid.forward import Forward
from backends.hybrid.kv_cache import KVCache
from backends.hybrid.ort import OrtExecutor
from tests.oracle import values

# Of a logit. 2e-3 is the most that is allowed; 5e-5 is the most that was seen on x86-64.
TOLERANCE = 5e-4
ANSWER_TOKENS = 48
FEWER_TOKENS = 16  # where only another way of prefill is tried


@pytest.fixture(scope="module")
def forward(demo_folder: Path) -> Iterator[Forward]:
    folder = read_folder(demo_folder, variant="fp32", overlay=None)
    executor = OrtExecutor(folder, None, lambda done, what: None)
    yield Forward(folder, executor)
    executor.close()


def prefill(forward: Forward, token_ids: list[int], cache: KVCache, chunk: int) -> Array:
    """Run tokens in chunks of so many; return the logits after the last."""
    logits = None
    tokens = np.array(token_ids, np.int32)
    for start in range(0, len(tokens), chunk):
        logits = forward.run(tokens[start : start + chunk], cache, start + chunk >= len(tokens))
    assert logits is not None
    return logits


def assert_answers_as(
    case: values.Case, forward: Forward, cache: KVCache, logits: Array, tokens: int
) -> None:
    """Assert that so many greedy tokens are those of the oracle, and the logits on the way."""
    expected = {step.step: step for step in case.logits if step.step < tokens}
    token_ids = []
    for step in range(tokens):
        if step in expected:
            difference = np.abs(logits[expected[step].ids] - np.array(expected[step].logits))
            assert difference.max() <= TOLERANCE, f"before answer token {step}"
        second, first = np.partition(logits, -2)[-2:]
        assert first - second == pytest.approx(case.margins[step], abs=2 * TOLERANCE)
        token_ids.append(int(logits.argmax()))
        run = forward.run(np.array(token_ids[-1:], np.int32), cache, want_logits=True)
        assert run is not None
        logits = run
    assert token_ids == case.answer_ids[:tokens]
    assert len(expected) >= 3


@pytest.mark.parametrize("name", values.greedy())
def test_greedy_tokens_and_logits(forward: Forward, name: str) -> None:
    case = values.greedy()[name]
    cache = forward.new_cache()
    logits = prefill(forward, case.prompt_ids, cache, forward.max_tokens)
    assert_answers_as(case, forward, cache, logits, ANSWER_TOKENS)


@pytest.mark.parametrize(("name", "chunk"), [("code", 1), ("code", 7), ("code", 50), ("long", 32)])
def test_prefill_cut_in_other_ways(forward: Forward, name: str, chunk: int) -> None:
    case = values.greedy()[name]
    assert chunk < forward.max_tokens == 128  # the greedy test above runs the longest chunks
    cache = forward.new_cache()
    logits = prefill(forward, case.prompt_ids, cache, chunk)
    assert_answers_as(case, forward, cache, logits, FEWER_TOKENS)


@pytest.mark.parametrize("kept", [1, 45, 130])
def test_prefill_after_a_cached_prefix(forward: Forward, kept: int) -> None:
    """The cache holds another conversation that begins alike: what is kept of it is not run again."""
    case = values.greedy()["second_turn"]
    cache = forward.new_cache()
    other = [*case.prompt_ids[:kept], *values.greedy()["code"].prompt_ids[-40:]]
    prefill(forward, other, cache, forward.max_tokens)
    cache.truncate(kept)
    logits = prefill(forward, case.prompt_ids[kept:], cache, forward.max_tokens)
    assert_answers_as(case, forward, cache, logits, FEWER_TOKENS)


def test_a_copied_cache_goes_on_as_the_original(forward: Forward) -> None:
    case = values.greedy()["english"]
    cache = forward.new_cache()
    prefill(forward, case.prompt_ids, cache, forward.max_tokens)
    copy = cache.fork(len(case.prompt_ids) - 1)
    prefill(forward, [1, 2, 3], cache, forward.max_tokens)
    logits = prefill(forward, case.prompt_ids[-1:], copy, forward.max_tokens)
    assert_answers_as(case, forward, copy, logits, FEWER_TOKENS)
