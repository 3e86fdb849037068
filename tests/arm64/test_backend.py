"""The rkllm backend's own tests, run once more on an emulated aarch64: the machine it is for.

Emulation is ten to twenty times slower, so time-outs are long there and nothing depends on a time.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.arm64.machine import ROOT, CannotSetUp, Machine, machine
from tests.demo_model import demo_models_dir
from tests.standin.rkllm.build import build

SMOKE_S = 1200  # two minutes on a machine of its own
SUITE_S = 4 * 3600  # an hour for the longest on a machine of its own

SMOKE = (
    "tests/backends/rkllm/test_layout.py",
    "tests/rkllm/test_models.py::test_a_prompt_as_text[nanbeige4.1-3b]",
)
# zig brings no address sanitizer for aarch64, and such a program does not run under emulation.
NOT_THERE = ("tests/standin/test_rkllm_life.py::test_from_c_under_the_sanitizers",)
SUITES = (
    "tests/backends/rkllm",
    "tests/standin",
    "tests/rkllm",
    "tests/backends/rknn",
    "tests/quantized/test_weights.py",
)


@pytest.fixture(scope="module")
def arm64() -> Machine:
    """The machine, or a skip that says why there is none."""
    demo_models_dir()  # its tokenizer is used there, and fetched and converted here
    try:
        return machine()
    except CannotSetUp as error:
        pytest.skip(f"no emulated aarch64: {error}")


def run_tests(arm64: Machine, paths: tuple[str, ...], tmp_path: Path, *, timeout_s: int) -> None:
    """Run test files there; fails with what they print, also where they all were skipped."""
    left_out = [f"--deselect={test}" for test in NOT_THERE]
    own = ["-p", "no:cacheprovider", "--timeout", str(timeout_s), "--basetemp", str(tmp_path / "emulated")]
    command = [str(arm64.python), "-m", "pytest", "-q", "-m", "not slow", *own, *left_out, *paths]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=arm64.environment(TEST_PATIENCE="15"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=timeout_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # servers of a test that was ended, too
    assert process.returncode == 0, said[-20_000:]
    assert re.search(r"\b\d+ passed", said)


@pytest.mark.slow
def test_it_is_another_machine(arm64: Machine) -> None:
    code = "import platform, struct, sys; print(platform.machine(), struct.calcsize('P'), sys.executable)"
    done = subprocess.run(
        [arm64.python, "-c", code], env=arm64.environment(), capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["aarch64", "8", str(arm64.python)], done.stderr


@pytest.mark.slow
@pytest.mark.smoke
@pytest.mark.timeout(SMOKE_S + 1300)
def test_structs_and_a_streamed_chat_on_aarch64(arm64: Machine, tmp_path: Path) -> None:
    build(machine="aarch64")  # natively, and kept
    run_tests(arm64, SMOKE, tmp_path, timeout_s=SMOKE_S)


@pytest.mark.slow
@pytest.mark.timeout(SUITE_S + 1300)
@pytest.mark.parametrize("suite", SUITES)
def test_the_backend_s_suite_on_aarch64(arm64: Machine, tmp_path: Path, suite: str) -> None:
    run_tests(arm64, (suite,), tmp_path, timeout_s=SUITE_S)
