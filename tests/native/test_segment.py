"""Native segments: every step is computed as numpy does it in float64, and what does not fit is refused."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.base import BackendError
from backends.hybrid.folder import read_folder
from backends.hybrid.forward import Forward
from backends.hybrid.kernels import Kernels
from backends.hybrid.native_segments import NativeSegments, with_native_segments
from backends.hybrid.ort import OrtExecutor
from convert.quantized import Quantized
from tests.quantized.little import little_folder, nothing
from tests.quantized.matrices import KINDS, random_matrix

TOLERANCE = 1e-5
Array = np.ndarray[Any, np.dtype[np.float32]]


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def floats(seed: int, *shape: int) -> Array:
    return rng(seed).standard_normal(shape).astype(np.float32)


def computed(native: Kernels, *operands: Any, size: int) -> Array:
    """Return the result of one step."""
    out = np.full(size, np.nan, np.float32)
    run = native.segment([(*operands, out)])
    assert run is not None
    run()
    return out


def rounded(x: Array) -> Any:
    """x as 8-bit products see it: in blocks of 32, of which the largest is 127."""
    blocks = x.astype(np.float64).reshape(-1, 32)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / 127
    return (np.rint(blocks / np.where(scale > 0, scale, 1)) * scale).reshape(-1)


@pytest.mark.parametrize("size", [1, 7, 8, 33, 576, 1000])
def test_steps_on_vectors(native: Kernels, size: int) -> None:
    x, y, weight = 3 * floats(1, size), floats(2, size), floats(3, size)
    wide = x.astype(np.float64)
    sigmoid = 1 / (1 + np.exp(-wide))
    gelu = 0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))
    norm = wide / np.sqrt((wide**2).mean() + 1e-3) * weight
    cases: list[tuple[tuple[Any, ...], Any]] = [
        (("add", x, y), wide + y),
        (("multiply", x, y), wide * y),
        (("silu", x), wide * sigmoid),
        (("gelu", x), gelu),
        (("norm", x, weight, 1e-3), norm),
    ]
    for operands, expected in cases:
        assert np.abs(computed(native, *operands, size=size) - expected).max() <= TOLERANCE, operands[0]


@pytest.mark.parametrize("taps", [1, 2, 4])
def test_conv(native: Kernels, taps: int) -> None:
    size = 50
    state, x, kernel = floats(1, (taps - 1) * size), floats(2, size), floats(3, taps, size)
    rows = np.concatenate([state.reshape(taps - 1, size), x[None]]).astype(np.float64)
    found = computed(native, "conv", state, x, kernel, size=size)
    assert np.abs(found - (rows * kernel).sum(axis=0)).max() <= TOLERANCE


@pytest.mark.parametrize("inputs", [32, 96, 576, 1536])
@pytest.mark.parametrize("kind", KINDS)
def test_single_ones_give_the_weights(native: Kernels, kind: str, inputs: int) -> None:
    """As in onnxruntime (tests/quantized): rounding a single one to 8 bits changes nothing."""
    matrix, weights = random_matrix(kind, 37, inputs, rng(3))
    x, out = np.zeros(inputs, np.float32), np.empty(37, np.float32)
    run = native.segment([(*product(x, matrix), out)])
    assert run is not None
    for index in {0, 1, 15, 16, 31, inputs // 2 + 5, inputs - 1} & set(range(inputs)):
        x[:] = 0
        x[index] = -2
        run()
        assert np.abs(out + 2 * weights[:, index]).max() <= 2e-6, index


def product(x: Array, matrix: Quantized) -> tuple[Any, ...]:
    values = np.ascontiguousarray(matrix.values).reshape(matrix.shape[0], -1)
    return ("product", x, matrix.bits, values, matrix.scales, matrix.offsets)


@pytest.mark.parametrize("outputs", [1, 3, 4, 63, 700])
@pytest.mark.parametrize("kind", KINDS)
def test_products(native: Kernels, kind: str, outputs: int) -> None:
    matrix, weights = random_matrix(kind, outputs, 288, rng(outputs))
    x = 5 * floats(1, 288)
    x[32:64] = 0  # a block without a scale
    found = computed(native, *product(x, matrix), size=outputs)
    exact = weights.astype(np.float64) @ rounded(x)
    if matrix.offsets is not None:  # these are of the sums of x itself
        exact += np.repeat(matrix.offsets, 32, axis=1).astype(np.float64) @ (x - rounded(x))
    assert np.abs(found - exact).max() <= 1e-4 * np.abs(exact).max()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_number_gives_none(native: Kernels, kind: str, bad: float) -> None:
    """So that the engine sees it in the logits, instead of answering by them. As onnxruntime does it."""
    matrix, _ = random_matrix(kind, 37, 96, rng(1))
    for index in (0, 31, 40, 95):
        x = floats(index, 96)
        x[index] = bad
        assert not np.isfinite(computed(native, *product(x, matrix), size=37)).any(), index


def test_a_product_in_floats(native: Kernels) -> None:
    weights, x = floats(1, 45, 70), floats(2, 70)
    found = computed(native, "product", x, 32, weights, None, None, size=45)
    assert np.abs(found - weights.astype(np.float64) @ x).max() <= TOLERANCE


def test_products_of_one_input_and_of_what_they_give(native: Kernels) -> None:
    """Three of one input at once, of different kinds; then one that reads what the first gave."""
    matrices = [random_matrix(kind, 64, 64, rng(index)) for index, kind in enumerate(KINDS)]
    x = floats(1, 64)
    outs = [np.empty(64, np.float32) for _ in range(4)]
    steps = [(*product(x, matrix), out) for (matrix, _), out in zip(matrices, outs, strict=False)]
    run = native.segment([*steps, (*product(outs[0], matrices[0][0]), outs[3])])
    assert run is not None
    for _ in range(3):
        run()
        for (matrix, _), out in zip(matrices, outs, strict=False):
            assert np.array_equal(out, computed(native, *product(x, matrix), size=64))
        assert np.array_equal(outs[3], computed(native, *product(outs[0], matrices[0][0]), size=64))


def test_products_of_a_vector_and_of_its_beginning(native: Kernels) -> None:
    """They begin at one place in memory, and are not of one input."""
    short, long = (random_matrix("Q8_0", 8, inputs, rng(inputs))[0] for inputs in (32, 96))
    x, first, second = floats(1, 96), np.empty(8, np.float32), np.empty(8, np.float32)
    run = native.segment([(*product(x[:32], short), first), (*product(x, long), second)])
    assert run is not None
    run()
    assert np.array_equal(first, computed(native, *product(x[:32], short), size=8))
    assert np.array_equal(second, computed(native, *product(x, long), size=8))


MATRIX, _ = random_matrix("Q4_1", 4, 64, rng(0))
MANY = np.zeros(300, np.float32)
X, OUT = np.zeros(64, np.float32), np.zeros(4, np.float32)


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (("remove", X, X), ValueError),
        (("add", X, X[:32], X), ValueError),
        (("add", X, X, X[:32]), ValueError),
        (("add", X, X), TypeError),
        (("add", X.astype(np.float64), X, X), TypeError),
        (("add", X[::2], X[:32], X[:32]), (ValueError, BufferError)),
        (("silu", X, OUT), ValueError),
        (("silu", np.zeros(0, np.float32), np.zeros(0, np.float32)), ValueError),
        (("norm", X, X[:2], 1e-5, X), ValueError),
        (("conv", X, X, np.zeros(100, np.float32), X), ValueError),
        (("conv", X[:32], X, np.zeros(128, np.float32), X), ValueError),
        ((*product(X, MATRIX), np.zeros(5, np.float32)), ValueError),
        ((*product(X[:32], MATRIX), OUT), ValueError),
        ((*product(np.zeros(48, np.float32), MATRIX), OUT), ValueError),
        (("product", X, 5, *product(X, MATRIX)[3:], OUT), ValueError),
        (("product", X, 8, *product(X, MATRIX)[3:], OUT), ValueError),
        (("product", X, 4, *product(X, MATRIX)[3:4], MATRIX.scales[:2], None, OUT), ValueError),
        (("product", X, 4, *product(X, MATRIX)[3:5], MATRIX.scales[:2], OUT), ValueError),
        (("product", X, 32, MATRIX.scales, None, None, OUT), ValueError),
        ((*product(X, MATRIX), X[60:]), ValueError),
        ((*product(X[:64], MATRIX), X[:4]), ValueError),
        ((*product(X, MATRIX), MATRIX.scales.reshape(-1)[:4]), ValueError),
        (("product", X, 32, MANY[:256], None, None, MANY[252:256]), ValueError),
        (("conv", MANY[:64], X, MANY[64:192], MANY[32:96]), ValueError),
        (("conv", MANY[:64], X, MANY[64:192], MANY[160:224]), ValueError),
        (("add", MANY[:64], X, MANY[1:65]), ValueError),
        (("norm", X, MANY[:64], 1e-5, MANY[:64]), ValueError),
        ((), (IndexError, TypeError)),
        ("add", TypeError),
    ],
)
@pytest.mark.parametrize("native", [1], indirect=True)
def test_what_does_not_fit_is_refused(
    native: Kernels, step: Any, error: type[Exception] | tuple[type[Exception], ...]
) -> None:
    with pytest.raises(error):
        native.segment([step])


@pytest.mark.parametrize("native", [1], indirect=True)
def test_a_result_that_may_not_be_written(native: Kernels) -> None:
    out = np.zeros(64, np.float32)
    out.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        native.segment([("silu", X, out)])


@pytest.mark.parametrize("native", [1], indirect=True)
def test_arrays_are_kept(native: Kernels) -> None:
    """The steps own what they work on: nobody else has to."""
    x = floats(1, 64)
    outs = np.empty(64, np.float32)

    def prepared() -> Callable[[], None]:
        made = native.segment([("add", x, floats(2, 64), outs)])
        assert made is not None
        return made

    runs = [prepared() for _ in range(50)]
    rubbish = [floats(index, 64) for index in range(200)]
    for run in runs:
        outs[:] = 0
        run()
        assert np.array_equal(outs, x + floats(2, 64))
    assert len(rubbish) == 200


def test_a_fork_ends_without_the_threads_it_has_not(site: str) -> None:
    """A child of a process with kernels computes by itself, and lets go of them without a crash."""
    child = """
import os, sys
import numpy as np
import rkserve_kernels as native

threads, others = native.threads(3), native.threads(3)
x, out = np.ones(64, np.float32), np.zeros(200, np.float32)
weights = np.ones((200, 64), np.float32)
segment = native.segment(threads, [("product", x, 32, weights, None, None, out)])
native.run_segment(segment)
if (child := os.fork()) == 0:
    out[:] = 0
    native.run_segment(segment)
    del segment, threads, others
    for _ in range(3):
        native.threads(3)
    sys.exit(5 if (out == 64).all() else 6)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
native.run_segment(segment)
"""
    done = subprocess.run(
        [sys.executable, "-c", child],
        env=os.environ | {"PYTHONPATH": site},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return little_folder(tmp_path_factory.mktemp("segments"))


def test_a_model_answers_as_on_onnxruntime(native: Kernels, folder: Path) -> None:
    read = read_folder(folder)
    alone = OrtExecutor(read, 1, nothing)
    beside = with_native_segments(read, OrtExecutor(read, 1, nothing), native)
    assert isinstance(beside, NativeSegments)
    prompt = np.arange(3, 40, dtype=np.int32)
    found = []
    for executor in (alone, beside):
        forward = Forward(read, executor, kernels=native)
        cache = forward.new_cache()
        logits = forward.run(prompt, cache, want_logits=True)
        assert logits is not None
        rows = [np.array(logits)]
        for token_id in prompt[:20]:
            logits = forward.run(np.array([token_id], np.int32), cache, want_logits=True)
            assert logits is not None
            rows.append(np.array(logits))
        found.append(np.array(rows))
        executor.close()
    # A value that is rounded the other way, at a border, is what sets the two apart.
    assert np.abs(found[0] - found[1]).max() <= 0.02 * found[0].std()


@pytest.mark.parametrize("native", [1], indirect=True)
def test_a_program_of_another_segment_is_refused(native: Kernels, folder: Path) -> None:
    read = read_folder(folder)
    first, second, third = read.programs
    swapped = type(read)(read.path, read.meta, read.variant, read.builds, (second, first, third))
    executor = OrtExecutor(read, 1, nothing)
    with pytest.raises(BackendError, match=r"does not describe its segment") as refused:
        with_native_segments(swapped, executor, native)
    assert refused.value.code == "model_corrupt"
    executor.close()


def test_the_module_says_what_it_offers(site: str) -> None:
    module = importlib.import_module("rkserve_kernels")
    assert set(module.__all__) >= {"segment", "run_segment"}
