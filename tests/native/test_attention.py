"""Native attention computes what numpy does in float64, in every shape and with every width of vectors."""

from __future__ import annotations

import importlib
import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from backends.hybrid.kernels import Kernels

TOLERANCE = 1e-5
FEWEST_LANES = 4 if platform.machine() == "aarch64" else 8


def exact_attention(
    q: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: float, window: int | None, cap: float | None
) -> np.ndarray:
    """Query by query, head by head, in float64."""
    tokens, heads, head_dim = q.shape
    kv_heads, length, _ = keys.shape
    out = np.empty((tokens, heads, head_dim))
    for token in range(tokens):
        position = length - tokens + token
        first = 0 if window is None else max(0, position - window + 1)
        for head in range(heads):
            of = head * kv_heads // heads
            seen = slice(first, position + 1)
            scores = keys[of, seen].astype(np.float64) @ q[token, head].astype(np.float64) * scale
            if cap is not None:
                scores = cap * np.tanh(scores / cap)
            weights = np.exp(scores - scores.max())
            out[token, head] = weights / weights.sum() @ values[of, seen].astype(np.float64)
    return out


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("tokens", "heads", "kv_heads", "head_dim", "length", "window", "cap"),
    [
        (1, 9, 3, 64, 1, None, None),
        (1, 9, 3, 64, 777, None, None),
        (1, 16, 4, 128, 1000, 256, None),
        (1, 10, 2, 24, 333, None, 5.0),
        (1, 7, 1, 8, 65, 64, None),
        (1, 6, 6, 512, 300, 1000, None),
        (2, 4, 2, 16, 2, None, None),
        (7, 9, 3, 64, 7, None, None),
        (64, 9, 3, 64, 500, None, None),
        (33, 16, 4, 128, 400, 100, None),
        (65, 10, 2, 24, 300, 17, 3.0),
        (130, 6, 6, 40, 130, 5, None),
        (97, 5, 5, 8, 1000, 1, None),
    ],
)
def test_attention(
    native: Kernels,
    dtype: type,
    tokens: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    length: int,
    window: int | None,
    cap: float | None,
) -> None:
    rng = np.random.default_rng(length)
    q = rng.normal(size=(tokens, heads, head_dim)).astype(np.float32)
    # Room for more than is there, full of rubbish, as in a cache that grows.
    both: np.ndarray = rng.normal(size=(2, kv_heads, length + 9, head_dim)).astype(dtype)
    keys, values = both[0], both[1]
    keys[:, length:] = values[:, length:] = np.nan
    scale = 1.7 / head_dim**0.5
    out = np.full_like(q, np.nan)
    expected = exact_attention(q, keys[:, :length], values[:, :length], scale, window, cap)
    attention = native.attention(scale, window, cap, head_dim)
    attention.attend(q, keys[:, :length], values[:, :length], out)
    np.testing.assert_allclose(out, expected, atol=TOLERANCE)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "window", "cap"),
    [(16, 4, 128, 256, None), (9, 3, 64, None, None), (7, 1, 80, 100, 2.0), (5, 5, 16, None, 3.0)],
)
def test_vectors_of_any_width_that_the_processor_has(
    native: Kernels,
    dtype: type,
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int | None,
    cap: float | None,
) -> None:
    kernels = importlib.import_module("rkserve_kernels")
    widest = kernels.lanes()
    rng = np.random.default_rng(head_dim)
    q = rng.normal(size=(1, heads, head_dim)).astype(np.float32)
    keys, values = rng.normal(size=(2, kv_heads, 523, head_dim)).astype(dtype)
    expected = exact_attention(q, keys, values, 0.3, window, cap)
    threads = kernels.threads(2)
    found = {}
    for lanes in {FEWEST_LANES, widest}:
        out = np.full_like(q, np.nan)
        kernels.attend(threads, q, keys, values, out, 0.3, window or 0, cap or 0.0, lanes)
        np.testing.assert_allclose(out, expected, atol=TOLERANCE)
        found[lanes] = out
    out = np.empty_like(q)
    kernels.attend(threads, q, keys, values, out, 0.3, window or 0, cap or 0.0)
    assert np.array_equal(out, found[widest])
    # Sums in another order: that they differ shows that both widths were there.
    assert len(found) == 1 or not np.array_equal(found[widest], found[FEWEST_LANES])
    for lanes in {0, 1, 2, 4, 5, 8, 12, 16, 32} - {FEWEST_LANES, widest}:
        with pytest.raises(ValueError, match="lanes"):
            kernels.attend(threads, q, keys, values, out, 0.3, 0, 0.0, lanes)


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="asks Linux for the processor's features")
def test_the_widest_vectors_are_used(native: Kernels) -> None:
    text = Path("/proc/cpuinfo").read_text()
    features = set(next((line for line in text.splitlines() if line.startswith("flags")), "").split())
    wide = {"avx512f", "avx512dq"} <= features
    expected = 4 if platform.machine() == "aarch64" else 16 if wide else 8
    assert importlib.import_module("rkserve_kernels").lanes() == expected


@pytest.mark.skipif(platform.machine() != "x86_64", reason="one width of vectors only")
def test_nothing_of_the_wide_loops_stands_in_for_other_code(site: str) -> None:
    """A function of one name in several files is kept once: it must not be the one that needs AVX-512."""
    made = Path(site, "rkserve_kernels", "decode_wide.o")
    if not made.exists() or shutil.which("nm") is None:
        pytest.skip("the kernels were made elsewhere, or there is no nm")
    listed = subprocess.run(["nm", "-C", "--defined-only", made], capture_output=True, text=True, check=True)
    shared = [line for line in listed.stdout.splitlines() if line.split(maxsplit=2)[1] in "TWVu"]
    assert shared
    assert all("rkk::attend_keys<16," in line for line in shared), shared


@pytest.mark.parametrize("native", [3], indirect=True)
def test_every_part_is_waited_for(native: Kernels) -> None:
    """More threads than cores: a helper may come late, or be stopped within its part."""
    rng = np.random.default_rng(12)
    q = rng.normal(size=(1, 6, 64)).astype(np.float32)
    keys, values = rng.normal(size=(2, 6, 3000, 64)).astype(np.float32)
    expected = exact_attention(q, keys, values, 0.1, None, None)
    attention = native.attention(0.1, None, None, 64)
    for _ in range(200):
        out = np.full_like(q, np.nan)
        attention.attend(q, keys, values, out)
        np.testing.assert_allclose(out, expected, atol=TOLERANCE)


def test_scores_that_are_all_very_low(native: Kernels) -> None:
    for tokens in (1, 5):
        q = np.ones((tokens, 2, 16), np.float32)
        keys = np.full((1, 70, 16), -20, np.float32)
        values = np.arange(70 * 16, dtype=np.float32).reshape(1, 70, 16) / 1000
        out = np.empty_like(q)
        native.attention(1.0, None, None, 16).attend(q, keys, values, out)
        expected = exact_attention(q, keys, values, 1.0, None, None)
        np.testing.assert_allclose(out, expected, atol=TOLERANCE)


@pytest.mark.parametrize("tokens", [1, 7])
def test_queries_that_lie_apart(native: Kernels, tokens: int) -> None:
    """As where a segment gives queries, keys and values in one row."""
    rng = np.random.default_rng(13)
    rows = rng.normal(size=(tokens, 12, 16)).astype(np.float32)
    q = rows[:, 3:7]
    keys, values = rng.normal(size=(2, 2, 50, 16)).astype(np.float32)
    expected = exact_attention(q, keys, values, 0.3, None, None)
    out = np.empty((tokens, 4, 16), np.float32)
    native.attention(0.3, None, None, 16).attend(q, keys, values, out)
    np.testing.assert_allclose(out, expected, atol=TOLERANCE)


def test_scores_of_any_size_do_not_overflow(native: Kernels) -> None:
    rng = np.random.default_rng(3)
    for tokens in (1, 5):
        q = rng.normal(size=(tokens, 2, 8)).astype(np.float32)
        keys = rng.normal(size=(1, 70, 8)).astype(np.float32) * np.float32(1e4)
        out = np.empty_like(q)
        native.attention(10.0, None, None, 8).attend(q, keys, keys, out)
        expected = exact_attention(q, keys, keys, 10.0, None, None)
        np.testing.assert_allclose(out, expected, rtol=1e-4)


def test_what_is_no_number_stays_none(native: Kernels) -> None:
    """A damaged model must be noticed, not smoothed over."""
    for tokens in (1, 5):
        q = np.ones((tokens, 2, 8), np.float32)
        keys = np.ones((1, 70, 8), np.float32)
        keys[0, 3, 2] = np.nan
        out = np.zeros_like(q)
        native.attention(1.0, None, None, 8).attend(q, keys, keys, out)
        assert np.isnan(out).any()


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FC00001, 0x7FFFFFFF, 0xFFC00001, 0xFFFFFFFF])
@pytest.mark.parametrize("head_dim", [8, 16])
def test_every_kind_of_no_number_stays_one(native: Kernels, bits: int, head_dim: int) -> None:
    """A NaN carries bits that arithmetic on its bits must not take for a number."""
    bad = np.array([bits], np.uint32).view(np.float32)
    for tokens in (1, 5):
        q = np.ones((tokens, 1, head_dim), np.float32)
        keys = np.zeros((1, 40, head_dim), np.float32)
        values = np.ones_like(keys)
        keys[0, 2, 0] = bad[0]
        out = np.zeros_like(q)
        native.attention(1.0, None, None, head_dim).attend(q, keys, values, out)
        assert np.isnan(out).all()
    x = np.ones((1, 8), np.float32)
    native.apply_gate(x, np.repeat(bad, 8)[None])
    assert np.isnan(x).all()


def test_what_no_query_sees_does_not_count(native: Kernels) -> None:
    """Not even if it is no number: rows before the first window."""
    rng = np.random.default_rng(14)
    q = rng.normal(size=(2, 2, 8)).astype(np.float32)
    keys, values = rng.normal(size=(2, 1, 64, 8)).astype(np.float32)
    expected = exact_attention(q, keys, values, 0.5, 4, None)
    keys[0, :50] = values[0, :50] = np.nan
    out = np.empty_like(q)
    native.attention(0.5, 4, None, 8).attend(q, keys, values, out)
    np.testing.assert_allclose(out, expected, atol=TOLERANCE)


def test_head_dims_that_native_code_does_not_take(native: Kernels) -> None:
    rng = np.random.default_rng(4)
    q, keys = rng.normal(size=(3, 2, 12)).astype(np.float32), rng.normal(size=(1, 9, 12)).astype(np.float32)
    out = np.empty_like(q)
    expected = exact_attention(q, keys, keys, 0.5, None, None)
    native.attention(0.5, None, None, 12).attend(q, keys, keys, out)
    np.testing.assert_allclose(out, expected, atol=TOLERANCE)
