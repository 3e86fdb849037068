"""The engine's logits against the same model in float64, in every way of cutting a sequence into calls."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from backends.hybrid.executor import Array, Call
from backends.hybrid.folder import HybridFolder, read_folder
from backends.hybrid.forward import Forward
from backends.hybrid.kv_cache import KVCache
from backends.hybrid.meta import META_FILE
from backends.hybrid.ort import OrtExecutor
from tests.backends.hybrid.reference import reference_logits
from tests.tiny import tiny_config, tiny_folder, tiny_llama_weights

TOKENS = np.random.default_rng(3).integers(3, 420, 75).astype(np.int32)


def open_folder(path: Path) -> tuple[HybridFolder, Forward]:
    folder = read_folder(path)
    return folder, Forward(folder, OrtExecutor(folder, 1, lambda done, what: None))


def run(forward: Forward, sizes: Sequence[int], cache: KVCache | None = None) -> tuple[np.ndarray, KVCache]:
    """Run TOKENS in calls of the given sizes; return the logits after the last, and the cache."""
    cache = cache or forward.new_cache()
    for number, size in enumerate(sizes):
        start = cache.length
        logits = forward.run(TOKENS[start : start + size], cache, want_logits=number == len(sizes) - 1)
        assert (logits is not None) == (number == len(sizes) - 1)
    assert logits is not None
    return logits.copy(), cache


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def expected(path: Path) -> np.ndarray:
    return reference_logits(read_folder(path).meta, tiny_llama_weights(tiny_config()), TOKENS.tolist())


@pytest.mark.parametrize(
    "sizes",
    [[1], [2], [32], [8, 8], [32, 32, 11], [1] * 40, [32, 1, 1, 5, 32, 1, 3], [31, 1, 2, 13]],
)
def test_equals_the_reference_however_it_is_cut(path: Path, expected: np.ndarray, sizes: list[int]) -> None:
    _, forward = open_folder(path)
    logits, cache = run(forward, sizes)
    np.testing.assert_allclose(logits, expected[sum(sizes) - 1], atol=2e-4)
    np.testing.assert_array_equal(cache.token_ids, TOKENS[: sum(sizes)])


def test_equals_the_reference_from_a_fork_and_after_truncation(path: Path, expected: np.ndarray) -> None:
    _, forward = open_folder(path)
    _, cache = run(forward, [32, 20])
    logits, _ = run(forward, [8, 9], cache.fork(40))
    np.testing.assert_allclose(logits, expected[56], atol=2e-4)
    cache.truncate(33)
    logits, _ = run(forward, [2], cache)
    np.testing.assert_allclose(logits, expected[34], atol=2e-4)


def test_an_untied_head_and_other_shapes(tmp_path: Path) -> None:
    shapes: dict[str, Any] = {
        "num_heads": 4,
        "num_kv_heads": 4,
        "head_dim": 6,
        "rotary_dim": 4,
        "tied_lm_head": False,
    }
    folder, forward = open_folder(tiny_folder(tmp_path, layers=2, seed=5, **shapes))
    weights = tiny_llama_weights(tiny_config(num_layers=2, **shapes), seed=5)
    logits, _ = run(forward, [20])
    np.testing.assert_allclose(logits, reference_logits(folder.meta, weights, TOKENS[:20])[-1], atol=2e-4)


def described(path: Path) -> dict[str, str | int]:
    data = path.read_bytes()
    return {"file": path.name, "sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)}


def test_fields_that_a_llama_does_not_use(tmp_path: Path) -> None:
    """Windows by layer type, no rotation, interleaved pairs, scales, caps and q/k norms, all at once."""
    path = tiny_folder(tmp_path)
    meta = msgspec.json.decode((path / META_FILE).read_bytes())
    rng = np.random.default_rng(11)
    norms = {f"{part}.npy": (1 + 0.3 * rng.standard_normal(8)).astype(np.float32) for part in "qk"}
    for name, weight in norms.items():
        np.save(path / name, weight)
    full = meta["attention"]["full"]
    meta["attention"] = {
        "sliding": full | {"window": 5, "rope": full["rope"] | {"style": "interleaved", "theta": 300.0}},
        "full": full | {"rope": None, "softcap": 1.5, "scale": 0.7},
    }
    normed = {"type": "sliding"} | {f"{part}_norm": described(path / f"{part}.npy") for part in "qk"}
    meta["layers"] = [{"type": "sliding"}, {"type": "full"}, normed]
    meta["embedding"]["scale"] = 1.7
    meta |= {"logits_scale": 0.5, "logits_softcap": 3.0}
    (path / META_FILE).write_bytes(msgspec.json.encode(meta))
    folder, forward = open_folder(path)
    weights = tiny_llama_weights(tiny_config())
    wanted = reference_logits(folder.meta, weights, TOKENS[:45], norms)
    assert np.abs(wanted).max() > 1.5  # so that the cap bends something
    for sizes in ([32, 13], [1] * 12, [3, 32, 1, 4]):
        logits, _ = run(forward, sizes)
        np.testing.assert_allclose(logits, wanted[sum(sizes) - 1], atol=2e-4)


def test_a_window_is_whole_wherever_a_sequence_is_cut_back(tmp_path: Path) -> None:
    """To each length that the cache offers, the shortest one included, with and without a snapshot."""
    path = tiny_folder(tmp_path)
    meta = msgspec.json.decode((path / META_FILE).read_bytes())
    meta["attention"] = {"sliding": meta["attention"]["full"] | {"window": 20}}
    meta["layers"] = [{"type": "sliding"}] * 3
    (path / META_FILE).write_bytes(msgspec.json.encode(meta))
    _, forward = open_folder(path)
    tokens = np.random.default_rng(4).integers(3, 420, 251).astype(np.int32)
    cache, expected = forward.new_cache(), []
    for position in range(250):
        if position == 100:
            cache.snapshot()
        logits = forward.run(tokens[position : position + 1], cache, want_logits=True)
        assert logits is not None
        expected.append(logits.copy())
    offered = [length for length in range(1, 250) if cache.resumable(length) == length]
    assert min(offered) < 100 and max(offered) == 249
    assert len(offered) < 249 - 100  # rows are gone: not every length can be had
    for length in offered:
        logits = forward.run(tokens[length : length + 1], cache.fork(length), want_logits=True)
        assert logits is not None
        np.testing.assert_allclose(logits, expected[length], atol=2e-4, err_msg=f"cut back to {length}")


class FixedLengths:
    """onnxruntime behind the manners of an NPU's runtime: few lengths, and rubbish in unused rows."""

    runtime = "fixed"

    def __init__(self, executor: OrtExecutor, lengths: Sequence[int]) -> None:
        self._executor = executor
        self._lengths = lengths
        self.max_tokens = lengths[-1]
        self.bound: list[int] = []

    def length_for(self, tokens: int) -> int:
        return next(length for length in self._lengths if length >= tokens)

    def bind(self, length: int) -> Sequence[Call]:
        assert length in self._lengths
        self.bound.append(length)
        calls = self._executor.bind(length)
        for call in calls:
            for array in (*call.inputs, *call.outputs):
                array[...] = 1e6
        return calls

    def close(self) -> None:
        self._executor.close()


def test_rows_that_only_fill_up_a_fixed_length_change_nothing(path: Path, expected: np.ndarray) -> None:
    folder = read_folder(path)
    executor = FixedLengths(OrtExecutor(folder, 1, lambda done, what: None), (1, 8, 32))
    forward = Forward(folder, executor)
    for sizes in ([5], [8, 20, 3], [32, 9, 1, 30]):
        logits, _ = run(forward, sizes)
        np.testing.assert_allclose(logits, expected[sum(sizes) - 1], atol=2e-4)
    assert set(executor.bound) == {1, 8, 32}


class Failing(Exception):
    pass


def test_a_run_that_fails_leaves_the_cache_as_it_was(
    path: Path, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, forward = open_folder(path)
    _, cache = run(forward, [20])
    with monkeypatch.context() as patch:
        calls = iter(range(5))

        def append(self: KVCache, layer: int, keys: Array, values: Array) -> tuple[Array, Array]:
            if next(calls) == 2:
                raise Failing
            return original(self, layer, keys, values)

        original = KVCache.append
        patch.setattr(KVCache, "append", append)
        with pytest.raises(Failing):
            forward.run(TOKENS[40:50], cache, want_logits=True)
    np.testing.assert_array_equal(cache.token_ids, TOKENS[:20])
    logits, _ = run(forward, [6], cache)
    np.testing.assert_allclose(logits, expected[25], atol=2e-4)


def test_the_output_layer_runs_once_for_a_prompt(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from backends.hybrid.ort import OrtCall

    ran: list[tuple[int, int]] = []  # the size of the last output, and the length
    original = OrtCall.run

    def count(self: OrtCall) -> None:
        ran.append((self.outputs[-1].shape[-1], len(self.inputs[0])))
        original(self)

    folder, forward = open_folder(path)
    monkeypatch.setattr(OrtCall, "run", count)
    run(forward, [32, 32])
    assert [length for size, length in ran if size == folder.meta.vocab_size] == [1]
    assert ran.count((folder.meta.num_kv_heads * folder.meta.head_dim, 32)) == 2 * 3
