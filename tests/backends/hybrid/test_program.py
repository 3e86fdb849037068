"""Programs of segments: what is refused, whatever a file says. What they compute: tests/native."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from backends.base import BackendError
from backends.hybrid.program import BrokenProgram, Program, bind, read_program

MATRIX = {
    "bits": 4,
    "outputs": 8,
    "inputs": 64,
    "first": 0,
    "rows": 8,
    "values": 0,
    "scales": 256,
    "offsets": 320,
}
DATA = np.zeros(384, np.uint8)
X = {"x": np.zeros((1, 64), np.float32)}
NORM = {"op": "norm", "out": "n", "x": "x", "weight": [1.0] * 64, "eps": 1e-5}


def program(*steps: dict[str, Any]) -> Program:
    return msgspec.convert({"version": 1, "steps": steps}, Program)


def product(**changes: Any) -> dict[str, Any]:
    return {"op": "product", "out": "y", "x": "x", "matrix": {**MATRIX, **changes}}


def test_arrays_are_views_of_the_file_and_the_buffers() -> None:
    data = np.arange(384, dtype=np.uint8)
    out = {"y": np.zeros((1, 4), np.float32)}
    steps = bind(program(NORM, product(first=4, rows=4)), X, out, data, data)
    assert [step[0] for step in steps] == ["norm", "product"]
    _, x, bits, values, scales, offsets, y = steps[1]
    assert (bits, values.shape, scales.shape, offsets.shape) == (4, (4, 32), (4, 2), (4, 2))
    assert np.shares_memory(x, X["x"])
    assert np.shares_memory(y, out["y"])
    assert np.shares_memory(values, data)
    assert values[0, 0] == 4 * 32 % 256
    assert np.array_equal(offsets, data[320:384].view("<f4").reshape(2, 8)[:, 4:].T)


@pytest.mark.parametrize(
    ("steps", "what"),
    [
        ([product(values=200)], "a matrix from byte 200 to 456, of 384"),
        ([product(values=-1)], "a matrix from byte -1"),
        ([product(scales=258)], "numbers from byte 258 on"),
        ([product(scales=None)], "a matrix of 64 inputs in blocks"),
        ([product(offsets=324)], "a matrix from byte 324 to 388, of 384"),
        ([product(inputs=32)], "step 0, which gives y, does not fit what it reads"),
        ([product(first=4)], "rows 4 to 12 of a matrix of 8"),
        ([product(first=-1)], "rows -1 to 7"),
        ([product(rows=0)], "rows 0 to 0"),
        ([product(bits=32, outputs=8, inputs=64)], "a matrix from byte 0 to 2048, of 384"),
        ([{"op": "add", "out": "y", "x": "x", "y": "z"}], "step 0 reads z, which nothing gave before"),
        ([{**NORM, "out": "x"}], "step 0 gives x again"),
        ([NORM, NORM], "step 1 gives n again"),
        ([{**NORM, "weight": [1.0]}], "step 0, which gives n, does not fit"),
        ([product(rows=4)], "step 0 gives y 4 values, and 8 are wanted"),
        ([product(), {"op": "add", "out": "z", "x": "x", "y": "y"}], "step 1, which gives z, does not fit"),
        (
            [{"op": "conv", "out": "y", "state": "x", "x": "x", "kernel": [[1.0]] * 64}],
            "step 0, which gives y, does not fit",
        ),
        ([NORM], "no step gives y"),
    ],
)
def test_a_program_that_does_not_fit(steps: list[dict[str, Any]], what: str) -> None:
    with pytest.raises(BrokenProgram) as broken:
        bind(program(*steps), X, {"y": np.zeros((1, 8), np.float32)}, DATA, DATA)
    assert what in str(broken.value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"version": 2, "steps": []}',
        b'{"version": 1, "steps": [{"op": "rm", "out": "y"}]}',
        b"[]",
    ],
)
def test_a_file_that_is_none(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(content)
    with pytest.raises(BackendError, match=r"is no program of a segment") as refused:
        read_program(path)
    assert refused.value.code == "model_corrupt"
    with pytest.raises(BackendError):
        read_program(tmp_path / "missing")
