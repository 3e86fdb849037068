"""Real image encoders, small ones: a token is the mean colour of a patch, so that anyone can work it out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from tests.vision.pictures import PATCH, SIDE, TOKENS


def write_encoder(
    path: Path,
    *,
    outputs: Sequence[tuple[float, float]] = ((1.0, 0.0),),
    layout: str = "nhwc",
    dtype: str = "uint8",
    side: int = SIDE,
) -> Path:
    """Write an .onnx encoder: output n is (1, tokens, 3), the mean colours times a factor plus a term."""
    nhwc = layout == "nhwc"
    shape = [1, side, side, 3] if nhwc else [1, 3, side, side]
    kind = TensorProto.UINT8 if dtype == "uint8" else TensorProto.FLOAT
    tokens = (side // PATCH) ** 2 if side != SIDE else TOKENS
    nodes = [
        helper.make_node("Cast", ["image"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["floats"], ["planes"], perm=[0, 3, 1, 2] if nhwc else [0, 1, 2, 3]),
        helper.make_node(
            "AveragePool", ["planes"], ["pooled"], kernel_shape=[PATCH, PATCH], strides=[PATCH, PATCH]
        ),
        helper.make_node("Transpose", ["pooled"], ["last"], perm=[0, 2, 3, 1]),
        helper.make_node("Reshape", ["last", "shape"], ["means"]),
    ]
    constants = [helper.make_tensor("shape", TensorProto.INT64, [3], [1, tokens, 3])]
    given = []
    for index, (factor, term) in enumerate(outputs):
        constants.append(helper.make_tensor(f"factor{index}", TensorProto.FLOAT, [], [factor]))
        constants.append(helper.make_tensor(f"term{index}", TensorProto.FLOAT, [], [term]))
        nodes.append(helper.make_node("Mul", ["means", f"factor{index}"], [f"scaled{index}"]))
        nodes.append(helper.make_node("Add", [f"scaled{index}", f"term{index}"], [f"out{index}"]))
        given.append(helper.make_tensor_value_info(f"out{index}", TensorProto.FLOAT, [1, tokens, 3]))
    graph = helper.make_graph(
        nodes, "encoder", [helper.make_tensor_value_info("image", kind, shape)], given, constants
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path
