"""Matrices in few bits keep the weights of the file: as read, as cut and put together, and in onnxruntime.

The weights to compare with are the gguf package's. What goes through onnxruntime is shown by inputs of a
single one: rounding them to 8 bits changes nothing, so each answer is a weight.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from backends.hybrid.meta import Tensor
from convert.graphs import StoredMatrix
from convert.matrices import Matrices, Part
from convert.quantized import Quantized, stacked
from convert.quantized_graph import QuantizedGraph
from tests.quantized.matrices import KINDS, Array, random_matrix

LARGEST = 0.02 * 128  # of a weight of random_matrix, about
EXACT = 3e-7 * LARGEST  # two roundings of float32, in the sum of an offset and in the answer


def run(path: Path, graph: QuantizedGraph, value: Array, sizes: dict[str, int]) -> dict[str, Array]:
    inputs = [Tensor(name="x", role="hidden", shape=["T", value.shape[1]])]
    outputs = [Tensor(name=name, role="q", shape=["T", size]) for name, size in sizes.items()]
    (path / "g.onnx").write_bytes(graph.model("g", inputs, outputs).SerializeToString())
    session = onnxruntime.InferenceSession(path / "g.onnx", providers=["CPUExecutionProvider"])
    return dict(zip(sizes, session.run(list(sizes), {"x": value}), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read(kind: str) -> None:
    matrix, weights = random_matrix(kind, 24, 96, np.random.default_rng(1))
    assert matrix.shape == (24, 96)
    assert np.abs(matrix.dense() - weights).max() <= EXACT
    rows = np.array([5, 0, 23, 5])
    assert np.abs(matrix[rows].dense() - weights[rows]).max() <= EXACT
    assert np.array_equal(matrix.times(0.25).dense(), matrix.dense() / 4)
    both = stacked([matrix[3:8], matrix])
    assert both is not None
    assert np.array_equal(both.dense(), np.concatenate([matrix.dense()[3:8], matrix.dense()]))


def test_matrices_of_different_kinds_stay_apart() -> None:
    rng = np.random.default_rng(2)
    four, shifted, eight = (random_matrix(kind, 8, 64, rng)[0] for kind in KINDS)
    assert stacked([four, shifted]) is None
    assert stacked([four, eight]) is None


@pytest.mark.parametrize("inputs", [32, 96, 1536])
@pytest.mark.parametrize("kind", KINDS)
def test_single_ones_through_onnxruntime(kind: str, inputs: int, tmp_path: Path) -> None:
    matrix, weights = random_matrix(kind, 72, inputs, np.random.default_rng(3))
    graph = QuantizedGraph(tmp_path / "g.data", Matrices(lambda name: weights, lambda name: matrix))
    with graph:
        graph.products("x", {"y": Part("w")})
    for rows in (np.eye(inputs, dtype=np.float32), np.eye(inputs, dtype=np.float32)[-1:]):
        found = run(tmp_path, graph, rows, {"y": 72})["y"]
        assert np.abs(found - weights.T[-len(rows) :]).max() <= EXACT


@pytest.mark.parametrize("mixed", [False, True])
def test_products_of_one_input(mixed: bool, tmp_path: Path) -> None:
    """Together where they are of a kind, alone where they are not or the file has one in floats."""
    rng = np.random.default_rng(4)
    kinds = ("Q4_1", "Q4_0", None) if mixed else ("Q4_1", "Q4_1", "Q4_1")
    blocks: dict[str, Quantized | None] = {}
    weights: dict[str, Array] = {}
    for name, kind, rows in zip("abc", kinds, (40, 8, 24), strict=True):
        blocks[name], weights[name] = random_matrix(kind or "Q8_0", rows, 64, rng)
        if kind is None:
            blocks[name] = None
    graph = QuantizedGraph(tmp_path / "g.data", Matrices(weights.__getitem__, blocks.__getitem__))
    with graph:
        graph.products("x", {name: Part(name, factor=0.5) for name in weights})
    operators = [node.op_type for node in graph.model("g", [], []).graph.node]
    assert operators.count("MatMulNBits") == (2 if mixed else 1)
    found = run(tmp_path, graph, np.eye(64, dtype=np.float32), {name: len(weights[name]) for name in weights})
    for name, matrix in weights.items():
        assert np.abs(found[name] - matrix.T / 2).max() <= EXACT, name


def test_a_head_of_the_table_that_is_in_floats(tmp_path: Path) -> None:
    table = np.random.default_rng(5).standard_normal((48, 32)).astype(np.float32)
    (tmp_path / "table").write_bytes(bytes(64) + table.tobytes())
    graph = QuantizedGraph(tmp_path / "g.data", Matrices(lambda name: table, lambda name: None))
    with graph:
        graph.head("y", "x", Part("table"), table=StoredMatrix("table", 64, (48, 32)))
    assert not (tmp_path / "g.data").exists()
    found = run(tmp_path, graph, np.eye(32, dtype=np.float32), {"y": 48})["y"]
    assert np.abs(found - table.T).max() <= EXACT
