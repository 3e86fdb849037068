"""The sigmoid gate on an attention layer's output, on the CPU in float32.

Not in a segment because the NPU's sigmoid is off by 2e-3. Knows arrays only.

Axes: T tokens, H query heads, D head_dim.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


def apply_gate(attn: Array, gate: Array) -> None:
    """Multiply attn, (T, H, D), in place by the sigmoid of gate, (T, H) or (T, H * D), which is changed too.

    The sigmoid is written as (1 + tanh(x / 2)) / 2, which overflows for no x.
    """
    gate *= np.float32(0.5)
    np.tanh(gate, out=gate)
    gate += np.float32(1)
    gate *= np.float32(0.5)
    attn *= gate.reshape(*attn.shape[:2], -1)
