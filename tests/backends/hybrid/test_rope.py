"""Rotation against complex numbers in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from backends.hybrid.meta import Rope, RopeScaling
from backends.hybrid.rope import RotaryTable, inverse_frequencies

LLAMA3 = RopeScaling(
    type="llama3",
    parameters={
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192.0,
    },
)


def rotated(x: np.ndarray, position: int, rope: Rope) -> np.ndarray:
    """Turn each pair of dimensions, as a complex number, by position / theta^(2 i / rotary_dim)."""
    result = x.astype(np.float64)
    pairs = rope.rotary_dim // 2
    for token in range(len(x)):
        for pair in range(pairs):
            angle = (position + token) / rope.theta ** (2 * pair / rope.rotary_dim)
            if rope.style == "half":
                first, second = pair, pair + pairs
            else:
                first, second = 2 * pair, 2 * pair + 1
            turned = (x[token, :, first] + 1j * x[token, :, second].astype(np.float64)) * np.exp(1j * angle)
            result[token, :, first], result[token, :, second] = turned.real, turned.imag
    return result


@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize("rotary_dim", [8, 6, 2])
@pytest.mark.parametrize(("tokens", "position"), [(1, 0), (1, 700), (5, 0), (7, 508), (1, 512), (3, 5000)])
def test_rotation(style: str, rotary_dim: int, tokens: int, position: int) -> None:
    rope = Rope(theta=10_000.0, rotary_dim=rotary_dim, style=style)  # type: ignore[arg-type]  # a parameter
    x = np.random.default_rng(tokens).standard_normal((tokens, 3, 8)).astype(np.float32)
    expected = rotated(x, position, rope)
    RotaryTable(rope, head_dim=8).rotate(x, position)
    np.testing.assert_allclose(x, expected, atol=2e-6)


def test_the_table_grows_without_changing() -> None:
    rope = Rope(theta=500.0, rotary_dim=4, style="half")
    grown, fresh = RotaryTable(rope, 4), RotaryTable(rope, 4)
    x = np.random.default_rng(0).standard_normal((2, 1, 4)).astype(np.float32)
    grown.rotate(x.copy(), 30_000)
    first, second = x.copy(), x.copy()
    grown.rotate(first, 10)
    fresh.rotate(second, 10)
    np.testing.assert_array_equal(first, second)


def test_a_view_of_a_larger_buffer_is_rotated_in_place() -> None:
    rope = Rope(theta=100.0, rotary_dim=4, style="half")
    buffer = np.ones((4, 2, 6), np.float32)
    expected = rotated(buffer[:3], 9, rope)
    RotaryTable(rope, 6).rotate(buffer[:3], 9)
    np.testing.assert_allclose(buffer[:3], expected, atol=1e-6)
    np.testing.assert_array_equal(buffer[3], 1)


def test_linear_scaling_stretches_positions() -> None:
    scaling = RopeScaling(type="linear", parameters={"factor": 4.0})
    rope = Rope(theta=10_000.0, rotary_dim=4, style="half", scaling=scaling)
    np.testing.assert_allclose(inverse_frequencies(rope), [0.25, 0.25 / 100])


def test_llama3_scaling_keeps_fast_divides_slow_and_blends_between() -> None:
    rope = Rope(theta=500_000.0, rotary_dim=128, style="half", scaling=LLAMA3)
    plain = 500_000.0 ** (-np.arange(64) / 64)
    wavelengths = 2 * math.pi / plain
    scaled = inverse_frequencies(rope)
    fast, slow = wavelengths < 8192 / 4, wavelengths > 8192
    assert fast.sum() > 20 and slow.sum() > 20 and (~fast & ~slow).sum() > 2
    np.testing.assert_allclose(scaled[fast], plain[fast])
    np.testing.assert_allclose(scaled[slow], plain[slow] / 8)
    for wavelength, before, after in zip(wavelengths, plain, scaled, strict=True):
        if 8192 / 4 <= wavelength <= 8192:
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            assert after == pytest.approx((1 - smooth) * before / 8 + smooth * before)


def scaled(kind: str, rotary_dim: int = 64, theta: float = 10_000.0, **parameters: float) -> Rope:
    scaling = RopeScaling(type=kind, parameters=parameters)  # type: ignore[arg-type]  # a parameter
    return Rope(theta=theta, rotary_dim=rotary_dim, style="half", scaling=scaling)


def test_ntk_scaling_keeps_the_fastest_and_divides_the_slowest() -> None:
    frequencies = inverse_frequencies(scaled("ntk", factor=8.0))
    plain = 10_000.0 ** (-np.arange(32) / 32)
    assert frequencies[0] == 1.0
    assert frequencies[-1] == pytest.approx(plain[-1] / 8)


def test_proportional_rotation_holds_the_slow_dimensions_still() -> None:
    """LFM3's full layers: 64 frequencies over a head of 128, the last 32 zero, halves still pair."""
    rope = scaled("proportional", rotary_dim=128, theta=1e6, partial_rotary_factor=0.5)
    frequencies = inverse_frequencies(rope)
    np.testing.assert_allclose(frequencies[:32], 1e6 ** (-np.arange(32) / 64))
    np.testing.assert_array_equal(frequencies[32:], 0)
    x = np.random.default_rng(1).standard_normal((1, 1, 128)).astype(np.float32)
    turned = x.copy()
    RotaryTable(rope, 128).rotate(turned, 40)
    np.testing.assert_array_equal(turned[..., 32:64], x[..., 32:64])
    np.testing.assert_array_equal(turned[..., 96:], x[..., 96:])
    angle = 40 * 1e6 ** (-3 / 64)
    pair = (x[0, 0, 3] + 1j * x[0, 0, 67]) * np.exp(1j * angle)
    assert turned[0, 0, 3] == pytest.approx(pair.real, abs=1e-5)
    assert turned[0, 0, 67] == pytest.approx(pair.imag, abs=1e-5)


def test_yarn_multiplies_what_it_turns() -> None:
    """Factor 40 over 4096: cosines and sines times 1.369; fast dimensions as they were, slow ones divided."""
    attention_factor = 0.1 * math.log(40) + 1
    assert attention_factor == pytest.approx(1.369, abs=1e-3)
    rope = scaled(
        "yarn",
        rotary_dim=128,
        factor=40.0,
        original_max_position_embeddings=4096.0,
        attention_factor=attention_factor,
        beta_fast=32.0,
        beta_slow=1.0,
    )
    frequencies, plain = inverse_frequencies(rope), 10_000.0 ** (-np.arange(64) / 64)
    turns = 4096 * plain / (2 * math.pi)
    np.testing.assert_allclose(frequencies[turns > 40], plain[turns > 40])
    np.testing.assert_allclose(frequencies[turns < 0.8], plain[turns < 0.8] / 40)
    assert (np.diff(frequencies) < 0).all()
    x = np.random.default_rng(1).standard_normal((1, 1, 128)).astype(np.float32)
    turned = x.copy()
    RotaryTable(rope, 128).rotate(turned, 11)
    assert np.linalg.norm(turned) == pytest.approx(attention_factor * np.linalg.norm(x), rel=1e-6)
