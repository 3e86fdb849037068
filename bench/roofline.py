"""What this machine could do at best: bytes read and multiplications made a second, all cores at work.

Decode reads every weight and the whole KV cache for each token, so memory bounds it; prefill multiplies, so
arithmetic does. The bounds are of fp32, with the best library at hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

_ARRAY_BYTES = 128 * 2**20
_MATRIX = 1536
_REPEATS = 9


@dataclass(frozen=True)
class Roofline:
    """bytes_s: read from memory, a dot product over more than any cache. flops_s: of a large fp32 product."""

    bytes_s: float
    flops_s: float

    def better(self, other: Roofline) -> Roofline:
        """Return the better of two measurements: others on the machine only ever take away."""
        return Roofline(max(self.bytes_s, other.bytes_s), max(self.flops_s, other.flops_s))


def measure(threads: int) -> Roofline:
    """Measure with `threads` at a time. Takes some seconds and 256 MB for two threads."""
    return Roofline(threads * _ARRAY_BYTES / _reading_s(threads), 2 * _MATRIX**3 / _best(_product(threads)))


def _reading_s(threads: int) -> float:
    arrays = [np.ones(_ARRAY_BYTES // 4, np.float32) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        return _best(lambda: list(pool.map(lambda array: array.dot(array), arrays)))


def _product(threads: int) -> Callable[[], object]:
    """Return a product of two square matrices in onnxruntime, which is quicker at it than numpy's BLAS."""
    shape = [_MATRIX, _MATRIX]
    node = helper.make_node("MatMul", ["left", "right"], ["product"])
    weights = helper.make_tensor(
        "right", TensorProto.FLOAT, shape, np.ones(shape, np.float32).tobytes(), raw=True
    )
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("left", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("product", TensorProto.FLOAT, shape)],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    left = np.ones(shape, np.float32)
    return lambda: session.run(None, {"left": left})


def _best(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(_REPEATS):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best
