"""The native kernels compute what numpy does in float64, in every shape, and refuse what does not fit."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.hybrid.gate import apply_gate
from backends.hybrid.kernels import NUMPY, Kernels, best_kernels
from backends.hybrid.meta import Rope, RopeScaling
from backends.hybrid.rope import RotaryTable
from tests.backends.rkllm.clib import compile_library

TOLERANCE = 1e-5

# Lets a process have so many threads.
FEW_THREADS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
static int given;
int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *with) {
  int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  create = dlsym(RTLD_NEXT, "pthread_create");
  if (given >= atoi(getenv("GRANTED"))) return EAGAIN;
  ++given;
  return create(thread, how, run, with);
}
"""


@pytest.mark.skipif("NATIVE_SITE" in os.environ, reason="the compiler may be for another machine")
def test_fewer_threads_than_were_asked_for(site: str, tmp_path: Path) -> None:
    """A limit of processes, as a service may have: an error, and no end of the process."""
    compile_library(tmp_path / "few.so", FEW_THREADS, "-ldl")
    code = "import rkserve_kernels as k\ntry: k.threads(4)\nexcept MemoryError as e: print('refused', e)"
    for granted in ("0", "1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": site, "LD_PRELOAD": str(tmp_path / "few.so"), "GRANTED": granted},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("refused ")


@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize(("rotary_dim", "head_dim"), [(64, 64), (20, 32), (6, 6), (2, 8)])
def test_rotation(native: Kernels, style: Any, rotary_dim: int, head_dim: int) -> None:
    scaling = RopeScaling(type="linear", parameters={"factor": 3.0})
    rope = Rope(theta=1e4, rotary_dim=rotary_dim, style=style, scaling=scaling)
    x = np.random.default_rng(5).normal(size=(5, 3, head_dim)).astype(np.float32)
    expected = x.copy()
    tables = RotaryTable(rope, head_dim), native.rotary(rope, head_dim)
    for position in (0, 700, 3):
        tables[0].rotate(expected, position)
        tables[1].rotate(x, position)
        np.testing.assert_allclose(x, expected, atol=TOLERANCE)


@pytest.mark.parametrize("size", [1, 8, 13, 128])
def test_norm_and_gate(native: Kernels, size: int) -> None:
    rng = np.random.default_rng(6)
    x = rng.normal(size=(4, 3, size)).astype(np.float32)
    weight = rng.normal(size=size).astype(np.float32)
    exact = x.astype(np.float64)
    exact = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-5) * weight
    native.rms_norm(x, weight, 1e-5)
    np.testing.assert_allclose(x, exact, atol=TOLERANCE)
    for shape in ((4, 3), (4, 3 * size)):
        gate = (rng.normal(size=shape) * 40).astype(np.float32)
        gated, expected = x.copy(), x.copy()
        apply_gate(expected, gate.copy())
        native.apply_gate(gated, gate)
        np.testing.assert_allclose(gated, expected, atol=TOLERANCE)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("tokens", "heads", "size"), [(1, 8, 128), (5, 3, 13), (64, 1, 40)])
def test_rows_into_a_cache(native: Kernels, dtype: type, tokens: int, heads: int, size: int) -> None:
    """As numpy writes them, and nothing beside them, from arrays of any strides between rows."""
    rows = np.random.default_rng(9).normal(size=(tokens, 2 * heads, size)).astype(np.float32)
    cache: np.ndarray = np.full((heads, tokens + 7, size), 5, dtype)
    expected = cache.copy()
    expected[:, 3 : 3 + tokens] = rows[:, ::2].transpose(1, 0, 2)
    native.write_rows(rows[:, ::2], cache[:, 3 : 3 + tokens])
    np.testing.assert_array_equal(cache, expected)


def test_half_precision(site: str) -> None:
    """Every half there is, and the floats between two neighbours, as numpy rounds them."""
    import rkserve_kernels

    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    floats = np.empty(2**16, np.float32)
    rkserve_kernels.from_half(halves, floats)
    with np.errstate(invalid="ignore"):  # on some machines widening a signalling NaN is one
        wide = halves.astype(np.float32)
    np.testing.assert_array_equal(floats, wide)
    finite = np.sort(floats[np.isfinite(floats)])
    between = np.concatenate([finite, (finite[:-1] + finite[1:]) / 2, [65519.9, 65520.1, 1e-9]])
    between = between.astype(np.float32)
    with np.errstate(over="ignore"):
        expected = between.astype(np.float16)
    rounded = np.empty(len(between), np.float16)
    rkserve_kernels.to_half(between, rounded)
    np.testing.assert_array_equal(rounded, expected)


@pytest.mark.parametrize("size", [1, 3, 4, 1000, 49152])
@pytest.mark.parametrize("temperature", [0.01, 0.7, 1.5])
def test_weights(native: Kernels, size: int, temperature: float) -> None:
    logits = (np.random.default_rng(7).normal(size=size) * 20).astype(np.float32)
    found = native.weights(logits, temperature)
    np.testing.assert_allclose(found, NUMPY.weights(logits, temperature), rtol=1e-13, atol=1e-300)
    assert found.max() == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_largest(native: Kernels, dtype: type) -> None:
    rng = np.random.default_rng(8)
    for values in (
        rng.normal(size=50_000),
        np.arange(50_000.0),
        -np.arange(50_000.0),
        np.round(rng.normal(size=50_000), 1),  # many equals
        np.full(3000, -np.inf),
    ):
        values = values.astype(dtype)
        for count in (0, 1, 40, 700):
            expected = np.lexsort((np.arange(len(values)), -values))[:count]
            np.testing.assert_array_equal(native.largest(values, count), expected)


def test_arrays_that_do_not_fit_are_refused(site: str) -> None:
    import rkserve_kernels as kernels

    threads = kernels.threads(1)
    q, keys, out = np.ones((2, 4, 8), "f"), np.ones((2, 9, 8), "f"), np.ones((2, 4, 8), "f")
    wrong: list[tuple[Any, ...]] = [
        (q.astype("d"), keys, keys, out),
        (q, keys, keys.astype("e"), out),
        (q, keys, keys[:, :8], out),
        (q, keys[:, ::2], keys[:, ::2], out),
        (q, keys[:, :, :4], keys[:, :, :4], out),
        (q, keys[:, :1], keys[:, :1], out),
        (q[:, :3], keys, keys, out[:, :3].copy()),
        (q, keys, keys, out[:1]),
        (np.ones((2, 4, 16), "f")[..., ::2], keys, keys, out),
        (np.ones((2, 8, 8), "f")[:, ::2], keys, keys, out),
        (q, keys[::-1], keys[::-1], out),
        (q, keys, keys, out.transpose(1, 0, 2)),
        (
            np.ones((2, 4, 12), "f"),
            np.ones((2, 9, 12), "f"),
            np.ones((2, 9, 12), "f"),
            np.ones((2, 4, 12), "f"),
        ),
    ]
    for arrays in wrong:
        with pytest.raises((TypeError, ValueError)):
            kernels.attend(threads, *arrays, 1.0, 0, 0.0)
    with pytest.raises(ValueError):
        kernels.attend(threads, q, keys, keys, out, 1.0, -1, 0.0)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        kernels.attend(threads, q, keys, keys, out, 1.0, 0, 0.0)
    with pytest.raises(ValueError, match="PyCapsule"):
        kernels.attend(object(), q, keys, keys, q, 1.0, 0, 0.0)
    for call, arguments in (
        (kernels.rms_norm, (q, np.ones(7, "f"), 1e-5)),
        (kernels.rotate, (q, np.ones((2, 5), "f"), np.ones((2, 5), "f"), False)),
        (kernels.rotate, (q, np.ones((1, 4), "f"), np.ones((1, 4), "f"), False)),
        (kernels.apply_gate, (q, np.ones(3, "f"))),
        (kernels.to_half, (q, np.ones(63, "e"))),
        (kernels.write_rows, (q, np.ones((4, 3, 8), "f"))),
        (kernels.write_rows, (q, np.ones((2, 4, 8), "f"))),
        (kernels.write_rows, (q, np.ones((4, 4, 8), "f")[:, ::2])),
        (kernels.write_rows, (q[..., ::2], np.ones((4, 2, 4), "f"))),
        (kernels.weigh_logits, (np.ones(5, "f"), np.ones(4), 1.0)),
        (kernels.weigh_logits, (np.ones(5, "f"), np.ones(5), 0.0)),
        (kernels.find_largest, (np.ones(5, "f"), np.ones(6, np.int64))),
    ):
        with pytest.raises(ValueError):
            call(*arguments)
    for count in (0, 65):
        with pytest.raises(ValueError):
            kernels.threads(count)


def test_numpy_where_they_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rkserve_kernels", None)
    monkeypatch.delitem(sys.modules, "backends.hybrid.native", raising=False)
    importlib.invalidate_caches()
    assert best_kernels(2) is NUMPY
    assert NUMPY.name == f"numpy {np.__version__}"


@pytest.mark.parametrize("padded", [False, True])
def test_halves_of_any_strides(native: Kernels, padded: bool) -> None:
    """As the memory of the NPU has them: rows that may be longer than what they hold."""
    rng = np.random.default_rng(11)
    floats = (rng.normal(size=(3, 10)) * 1e4).astype(np.float32)
    floats[0, 0], floats[1, 1], floats[2, 2] = 1e9, -np.inf, np.nan
    memory = np.full((3, 16), 7, np.float16)
    halves = memory[:, :10] if padded else np.empty((3, 10), np.float16)
    native.to_half(floats, halves)
    with np.errstate(over="ignore"):
        expected = floats.astype(np.float16)
    np.testing.assert_array_equal(halves, expected)
    assert (memory[:, 10:] == 7).all()
    back = np.empty((3, 10), np.float32)
    native.from_half(halves, back)
    np.testing.assert_array_equal(back, expected.astype(np.float32))
