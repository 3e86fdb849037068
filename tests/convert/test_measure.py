"""The largest value of the stream is found wherever it stands, not only where segments begin and end.

The stream is 100 in its first channel and 0 in all others. In one layer attention or convolution adds a large
value to it, and the feed-forward part takes it away again.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from convert.graphs import Array
from convert.hf import convert_hf
from tests.convert.checkpoints import write_checkpoint, write_tensors
from tests.convert.reference import read_meta
from tests.oracle.architectures import models

STREAM = 100.0  # so that the norms' epsilon is nothing beside it
# Names of a layer's matrices: q, k and v or B, C and x; back onto the stream; gate; up; down.
ATTENTION = ("self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
CONV = ("conv.in_proj", "conv.out_proj", "feed_forward.w1", "feed_forward.w3", "feed_forward.w2")


def hiding(name: str, layer: int, value: float) -> dict[str, Array]:
    """Return weights for a model of the oracle whose stream is `value` larger in the middle of one layer."""
    shapes = models()[name].shapes
    weights = {
        name: np.ones(shape, np.float32) if len(shape) == 1 else np.zeros(shape, np.float32)
        for name, shape in shapes.items()
    }
    weights["model.embed_tokens.weight"][:, 0] = STREAM
    is_conv = f"model.layers.{layer}.{CONV[0]}.weight" in shapes
    into, onto, gate, up, down = (
        weights[f"model.layers.{layer}.{part}.weight"] for part in (CONV if is_conv else ATTENTION)
    )
    size = len(onto)
    normed = math.sqrt(size)  # the first channel after a norm; everywhere else 0
    if is_conv:
        weights[f"model.layers.{layer}.conv.conv.weight"][0, 0, -1] = 1
        into[[0, size, 2 * size], 0] = 1
        onto[0, 0] = value / normed**3
    else:
        into[:, 0] = 1
        onto[0, 0] = value / normed
    gate[0, 0] = up[0, 0] = 1
    down[0, 0] = -value / (normed**2 / (1 + math.exp(-normed)))
    return weights


@pytest.mark.parametrize(
    ("name", "layer", "segment"),
    [("llama", 1, 2), ("llama", 2, 3), ("lfm2_untied", 0, 0), ("lfm2_untied", 1, 0), ("lfm2_untied", 4, 1)],
)
@pytest.mark.parametrize(("value", "scale"), [(1000.0, 1.0), (40_000.0, 4.0)])
def test_a_large_value_within_a_segment(
    name: str, layer: int, segment: int, value: float, scale: float, tmp_path: Path
) -> None:
    directory = write_checkpoint(tmp_path / name, models()[name])
    write_tensors(directory, hiding(name, layer, value), "F32")
    meta = read_meta(convert_hf(directory, tmp_path / "out", lengths=(1, 8)))
    assert meta.residual_scale == scale
    expected = [STREAM / scale] * len(meta.segments)
    expected[segment] = (STREAM + value) / scale
    found = [one.max_hidden or 0.0 for one in meta.segments]
    np.testing.assert_allclose(found, expected, rtol=0.05)
