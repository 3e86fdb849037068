"""The wheels a board installs: made by zig for both architectures, and what is in them computes."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from backends.hybrid import kernels
from tests.arm64.machine import ROOT, CannotSetUp, machine

BUILD_S = 1800

# Run where only the wheel and numpy are: the attention of one token and of some, against numpy's.
PROBE = """
import platform, numpy as np, rkserve_kernels as kernels
rng = np.random.default_rng(1)
for tokens, dtype, size in [(t, d, s) for t in (1, 70) for d in "fe" for s in (40, 64)]:
    q = rng.normal(size=(tokens, 6, size)).astype("f")
    keys, values = (rng.normal(size=(2, 300, size)).astype(dtype) for _ in range(2))
    out = np.empty_like(q)
    kernels.attend(kernels.threads(2), q, keys, values, out, 0.2, 0, 0.0)
    for token in range(tokens):
        end = 300 - tokens + token + 1
        for head in range(6):
            scores = keys[head // 3, :end].astype("d") @ q[token, head].astype("d") * 0.2
            weights = np.exp(scores - scores.max())
            expected = weights / weights.sum() @ values[head // 3, :end].astype("d")
            assert np.abs(out[token, head] - expected).max() < 1e-5
halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
floats, back = np.empty(2**16, "f"), np.empty(2**16, np.float16)
kernels.from_half(halves, floats)
kernels.to_half(floats, back)
assert np.array_equal(floats, halves.astype("f"), equal_nan=True)
assert np.array_equal(back, halves, equal_nan=True)
x = rng.normal(size=49152).astype("f") * 9
weights = np.empty(len(x))
kernels.weigh_logits(x, weights, 0.7)
exact = np.exp((x.astype("d") - x.max()) / 0.7)
assert np.allclose(weights, exact, rtol=1e-13, atol=1e-300)
print(platform.machine(), "ok")
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "kernels.py", "--out", out],
        capture_output=True,
        text=True,
        timeout=BUILD_S,
    )
    assert done.returncode == 0, done.stderr
    return out


def unpacked(dist: Path, architecture: str, into: Path) -> Path:
    wheel = dist / f"rkserve_kernels-0.1.0-cp311-abi3-manylinux_2_28_{architecture}.whl"
    with zipfile.ZipFile(wheel) as files:
        files.extractall(into)
    return into


@pytest.mark.slow
@pytest.mark.timeout(BUILD_S + 600)
def test_on_this_machine(dist: Path, tmp_path: Path) -> None:
    """Installed, it is what the engine takes."""
    site = unpacked(dist, platform.machine(), tmp_path)
    names = "from backends.hybrid.kernels import best_kernels; print(best_kernels(2).name)"
    for code, expected in ((PROBE, f"{platform.machine()} ok"), (names, "rkserve-kernels 0.1.0, 2 threads")):
        done = subprocess.run(
            [sys.executable, "-P", "-c", code],
            env={"PYTHONPATH": f"{site}:{Path(kernels.__file__).parents[2]}"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.stdout.strip() == expected, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(BUILD_S + 600)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the wheel is for x86-64")
def test_on_a_processor_without_avx512(dist: Path, tmp_path: Path) -> None:
    """Nothing but the loops that are chosen at run time may need it: else this ends by SIGILL."""
    emulator = shutil.which("qemu-x86_64-static") or shutil.which("qemu-x86_64")
    if emulator is None:
        pytest.skip("no qemu-x86_64 (Debian: apt-get install qemu-user-static)")
    site = unpacked(dist, "x86_64", tmp_path)
    lanes = "print(kernels.lanes())"
    done = subprocess.run(
        [emulator, "-cpu", "Haswell", sys.executable, "-P", "-c", PROBE + lanes],
        env={"PYTHONPATH": str(site), "OPENBLAS_NUM_THREADS": "1", "OPENBLAS_CORETYPE": "Haswell"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.stdout.split("\n")[:2] == ["x86_64 ok", "8"], done.stderr


@pytest.mark.slow
@pytest.mark.timeout(BUILD_S + 1800)
def test_on_aarch64(dist: Path, tmp_path: Path) -> None:
    try:
        arm64 = machine()
    except CannotSetUp as error:
        pytest.skip(f"no emulated aarch64: {error}")
    site = unpacked(dist, "aarch64", tmp_path)
    done = subprocess.run(
        [arm64.python, "-c", PROBE],
        env=arm64.environment(PYTHONPATH=str(site)),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.stdout.strip() == "aarch64 ok", done.stderr
    command = [str(arm64.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "1800"]
    suite = [f"tests/native/{name}.py" for name in ("test_segment", "test_attention", "test_kernels")]
    suite.append("tests/quantized/test_architectures.py")
    done = subprocess.run(
        [*command, "--basetemp", str(tmp_path / "emulated"), *suite],
        cwd=ROOT,
        env=arm64.environment(NATIVE_SITE=str(site), TEST_PATIENCE="15"),
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr
