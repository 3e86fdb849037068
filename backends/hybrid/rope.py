"""Rotary position embedding on the CPU: frequencies, tables that grow with the context, and the rotation.

Knows numbers and positions, nothing of layers or caches.
Source of the formulas: Su et al., RoFormer (arXiv 2104.09864); for the scaling types the functions
of those names in Hugging Face transformers, modeling_rope_utils.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from backends.hybrid.meta import Rope, RopeScaling

Array = npt.NDArray[np.float32]
Frequencies = npt.NDArray[np.float64]

SUPPORTED_SCALING = frozenset({"linear", "llama3", "ntk", "proportional", "yarn"})
_BLOCK = 512  # positions a table grows by at least


def inverse_frequencies(rope: Rope) -> Frequencies:
    """Return the angle a position adds in each pair of dimensions, (rotary_dim / 2,), scaling applied.

    Raises KeyError for a scaling type not in SUPPORTED_SCALING, and for a missing parameter of one.
    """
    if rope.scaling is None:
        return _plain(rope, rope.theta)
    kinds = {"linear": _linear, "llama3": _llama3, "ntk": _ntk, "proportional": _proportional, "yarn": _yarn}
    return kinds[rope.scaling.type](rope, rope.scaling)


def magnitude(rope: Rope) -> float:
    """Return the factor of cosines and sines: YaRN's, else 1. Scores have its square."""
    scaling = rope.scaling
    return scaling.parameters["attention_factor"] if scaling and scaling.type == "yarn" else 1.0


def _plain(rope: Rope, theta: float) -> Frequencies:
    exponents = np.arange(0, rope.rotary_dim, 2, dtype=np.float64) / rope.rotary_dim
    return np.asarray(1.0 / theta**exponents)


def _linear(rope: Rope, scaling: RopeScaling) -> Frequencies:
    return _plain(rope, rope.theta) / scaling.parameters["factor"]


def _ntk(rope: Rope, scaling: RopeScaling) -> Frequencies:
    """Raise theta so that the slowest frequency is divided by the factor and the fastest stays."""
    exponent = rope.rotary_dim / (rope.rotary_dim - 2)
    return _plain(rope, rope.theta * scaling.parameters["factor"] ** exponent)


def _proportional(rope: Rope, scaling: RopeScaling) -> Frequencies:
    """Keep the fastest frequencies, as many as the share says, and hold the other dimensions still."""
    frequencies = _plain(rope, rope.theta) / scaling.parameters.get("factor", 1.0)
    turning = int(scaling.parameters["partial_rotary_factor"] * rope.rotary_dim // 2)
    frequencies[turning:] = 0.0
    return frequencies


def _yarn(rope: Rope, scaling: RopeScaling) -> Frequencies:
    """Divide slow frequencies by the factor, keep fast ones, and blend those between (arXiv 2309.00071).

    The borders are the dimensions that turn beta_fast and beta_slow times in the original context.
    """
    values = scaling.parameters
    plain = _plain(rope, rope.theta)

    def dimension(turns: float) -> float:
        wavelength = values["original_max_position_embeddings"] / (2 * math.pi * turns)
        return rope.rotary_dim * math.log(wavelength) / (2 * math.log(rope.theta))

    low, high = dimension(values["beta_fast"]), dimension(values["beta_slow"])
    if values.get("truncate", 1.0):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    if low == high:
        high += 0.001  # as transformers has it, so that nothing is divided by zero
    divided = np.clip((np.arange(len(plain)) - low) / (high - low), 0.0, 1.0)
    return np.asarray(plain * (1 - divided) + plain / values["factor"] * divided)


def _llama3(rope: Rope, scaling: RopeScaling) -> Frequencies:
    """Divide slow frequencies by the factor, keep fast ones, and blend those between."""
    frequencies = _plain(rope, rope.theta)
    factor = scaling.parameters["factor"]
    low, high = scaling.parameters["low_freq_factor"], scaling.parameters["high_freq_factor"]
    turns = scaling.parameters["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return np.asarray(frequencies * (kept + (1 - kept) / factor))


def table_size(positions: int, wanted: int) -> int:
    """Return for how many positions to make tables that have so many and need more."""
    return -(-max(wanted, positions * 5 // 4) // _BLOCK) * _BLOCK


def cosines_and_sines(
    frequencies: Frequencies, factor: float, positions: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return those of the positions from 0 on, times a factor, (positions, pairs).

    In float64: float32 angles are off at long contexts.
    """
    angles = np.arange(positions)[:, None] * frequencies
    return factor * np.cos(angles), factor * np.sin(angles)


class RotaryTable:
    """Cosines and sines of all positions seen so far, and the rotation with them. Not thread-safe."""

    def __init__(self, rope: Rope, head_dim: int) -> None:
        self._frequencies = inverse_frequencies(rope)
        self._magnitude = magnitude(rope)
        self._pairs = rope.rotary_dim // 2
        self._rest = head_dim - rope.rotary_dim
        self._interleaved = rope.style == "interleaved"
        self._cos: Array = np.empty((0, 1, 1, 1), np.float32)
        self._sin: Array = self._cos
        self._grow(_BLOCK)

    def rotate(self, x: Array, position: int) -> None:
        """Rotate x, (T, H, D) float32, in place; its first row stands at `position`, the next one after it.

        The last axis must be contiguous; dimensions from rotary_dim on are left as they are.
        """
        tokens, heads = x.shape[:2]
        end = position + tokens
        if end > len(self._cos):
            self._grow(end)
        turned = x[..., : 2 * self._pairs] if self._rest else x
        if self._interleaved:
            pairs = turned.reshape(tokens, heads, self._pairs, 2)
            swapped = pairs[..., ::-1]
        else:
            pairs = turned.reshape(tokens, heads, 2, self._pairs)
            swapped = pairs[:, :, ::-1]
        sines = swapped * self._sin[position:end]
        pairs *= self._cos[position:end]
        pairs += sines

    def _grow(self, positions: int) -> None:
        """Make tables for at least so many positions.

        Axes (S, 1, 2, pairs), or (S, 1, pairs, 2) interleaved: the sign of each half is in the sines.
        """
        size = table_size(len(self._cos), positions)
        cos, sin = cosines_and_sines(self._frequencies, self._magnitude, size)
        sign = np.array([-1.0, 1.0])
        if self._interleaved:
            self._cos = cos[:, None, :, None].astype(np.float32)
            self._sin = (sin[:, None, :, None] * sign).astype(np.float32)
        else:
            self._cos = cos[:, None, None, :].astype(np.float32)
            self._sin = (sin[:, None, None, :] * sign[:, None]).astype(np.float32)
