"""The sigmoid gate against float64."""

from __future__ import annotations

import numpy as np
import pytest

from backends.hybrid.gate import apply_gate


@pytest.mark.parametrize("per_head", [True, False])
def test_gate(per_head: bool) -> None:
    rng = np.random.default_rng(0)
    attn = rng.standard_normal((3, 4, 6)).astype(np.float32)
    gate = (30 * rng.standard_normal((3, 4) if per_head else (3, 24))).astype(np.float32)
    sigmoid = 1 / (1 + np.exp(-gate.astype(np.float64)))
    expected = attn * (sigmoid[..., None] if per_head else sigmoid.reshape(3, 4, 6))
    apply_gate(attn, gate)
    np.testing.assert_allclose(attn, expected, atol=1e-6)


def test_no_gate_overflows() -> None:
    attn = np.ones((1, 2, 1), np.float32)
    apply_gate(attn, np.array([[1e30, -1e30]], np.float32))
    np.testing.assert_array_equal(attn[0, :, 0], [1, 0])
