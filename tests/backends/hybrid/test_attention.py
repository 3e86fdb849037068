"""Attention against loops in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from backends.hybrid import attention
from backends.hybrid.attention import Attention


def naive(
    q: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> np.ndarray:
    tokens, heads, head_dim = q.shape
    kv_heads, length, _ = keys.shape
    out = np.zeros((tokens, heads, head_dim))
    for token in range(tokens):
        position = length - tokens + token
        first = 0 if window is None else max(0, position - window + 1)
        for head in range(heads):
            kv_head = head * kv_heads // heads
            scores = []
            for key in range(first, position + 1):
                score = scale * math.fsum(q[token, head].astype(float) * keys[kv_head, key])
                scores.append(score if softcap is None else softcap * math.tanh(score / softcap))
            weights = np.exp(np.array(scores) - max(scores))
            weights /= weights.sum()
            for weight, key in zip(weights, range(first, position + 1), strict=True):
                out[token, head] += weight * values[kv_head, key].astype(float)
    return out


def arrays(tokens: int, length: int, heads: int, kv_heads: int, head_dim: int) -> list[np.ndarray]:
    rng = np.random.default_rng([tokens, length, heads])
    q = rng.standard_normal((tokens, heads, head_dim)).astype(np.float32)
    room = rng.standard_normal((2, kv_heads, length + 5, head_dim)).astype(np.float32)
    return [q, room[0, :, :length], room[1, :, :length]]  # views, as a cache with spare room gives


@pytest.mark.parametrize(
    ("tokens", "length", "heads", "kv_heads", "head_dim"),
    [(1, 1, 3, 1, 4), (1, 40, 9, 3, 8), (7, 7, 4, 4, 5), (13, 50, 6, 2, 8), (32, 33, 8, 1, 2)],
)
@pytest.mark.parametrize("window", [None, 1, 6, 20])
@pytest.mark.parametrize("scores_bytes", [1, 500, attention.SCORES_BYTES])
def test_equals_loops(
    tokens: int,
    length: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int | None,
    scores_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention, "SCORES_BYTES", scores_bytes)
    q, keys, values = arrays(tokens, length, heads, kv_heads, head_dim)
    expected = naive(q, keys, values, 0.3, window)
    out = np.full_like(q, np.nan)
    Attention(0.3, window).attend(q, keys, values, out)
    np.testing.assert_allclose(out, expected, atol=3e-6)


def test_softcap() -> None:
    q, keys, values = arrays(5, 9, 4, 2, 8)
    expected = naive(q, keys, values, 1.5, softcap=2.0)
    assert np.abs(expected - naive(q, keys, values, 1.5)).max() > 0.05
    out = np.empty_like(q)
    Attention(1.5, softcap=2.0).attend(q, keys, values, out)
    np.testing.assert_allclose(out, expected, atol=3e-6)


def test_scores_of_any_size_do_not_overflow() -> None:
    q, keys, values = arrays(3, 8, 2, 1, 4)
    keys = keys * np.float32(1e4)
    out = np.empty_like(q)
    Attention(10.0).attend(q.copy(), keys, values, out)
    np.testing.assert_allclose(out, naive(q, keys, values, 10.0), atol=1e-4)


def test_room_for_scores_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "SCORES_BYTES", 16 * 1024)
    q, keys, values = arrays(64, 400, 4, 2, 8)
    tested = Attention(1.0)
    tested.attend(q, keys, values, np.empty_like(q))
    assert 0 < tested._scores.nbytes <= 16 * 1024 * 5 // 4


def test_nothing_is_read_from_memory_of_another_call() -> None:
    """A large call leaves scores behind that a small one after it must not see."""
    tested = Attention(0.5)
    for size in [(20, 60), (1, 3), (4, 10), (1, 61)]:
        q, keys, values = arrays(*size, 4, 2, 8)
        expected = naive(q, keys, values, 0.5)
        out = np.empty_like(q)
        tested.attend(q, keys, values, out)
        np.testing.assert_allclose(out, expected, atol=3e-6)
