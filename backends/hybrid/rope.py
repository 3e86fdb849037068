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

SUPPORTED_SCALING = frozenset({"linear", "llama3"})
_BLOCK = 512  # positions a table grows by at least


def inverse_frequencies(rope: Rope) -> npt.NDArray[np.float64]:
    """Return the angle a position adds in each pair of dimensions, (rotary_dim / 2,), scaling applied.

    Raises KeyError for a scaling type not in SUPPORTED_SCALING, and for a missing parameter of one.
    """
    exponents = np.arange(0, rope.rotary_dim, 2, dtype=np.float64) / rope.rotary_dim
    frequencies = 1.0 / rope.theta**exponents
    if rope.scaling is None:
        return frequencies
    return {"linear": _linear, "llama3": _llama3}[rope.scaling.type](frequencies, rope.scaling)


def _linear(frequencies: npt.NDArray[np.float64], scaling: RopeScaling) -> npt.NDArray[np.float64]:
    return frequencies / scaling.parameters["factor"]


def _llama3(frequencies: npt.NDArray[np.float64], scaling: RopeScaling) -> npt.NDArray[np.float64]:
    """Divide slow frequencies by the factor, keep fast ones, and blend those between."""
    factor = scaling.parameters["factor"]
    low, high = scaling.parameters["low_freq_factor"], scaling.parameters["high_freq_factor"]
    turns = scaling.parameters["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return frequencies * (kept + (1 - kept) / factor)


class RotaryTable:
    """Cosines and sines of all positions seen so far, and the rotation with them. Not thread-safe."""

    def __init__(self, rope: Rope, head_dim: int) -> None:
        self._frequencies = inverse_frequencies(rope)
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
        """Make tables for at least so many positions. Angles are float64: float32 is off at long contexts.

        Axes (S, 1, 2, pairs), or (S, 1, pairs, 2) interleaved: the sign of each half is in the sines.
        """
        size = -(-max(positions, len(self._cos) * 5 // 4) // _BLOCK) * _BLOCK
        angles = np.arange(size)[:, None] * self._frequencies
        sign = np.array([-1.0, 1.0])
        cos, sin = np.cos(angles), np.sin(angles)
        if self._interleaved:
            self._cos = cos[:, None, :, None].astype(np.float32)
            self._sin = (sin[:, None, :, None] * sign).astype(np.float32)
        else:
            self._cos = cos[:, None, None, :].astype(np.float32)
            self._sin = (sin[:, None, None, :] * sign[:, None]).astype(np.float32)
