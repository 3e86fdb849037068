"""The vendor's rknn-toolkit-lite2 on an emulated board: closed, for aarch64 only, and it looks for an NPU."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.arm64.machine import EMULATOR, ROOT, CannotSetUp, Machine, machine
from tests.standin.rknn.build import build

TIMEOUT_S = 1200
COMPATIBLE = b"radxa,rock-5c\0rockchip,rk3588\0"


@pytest.fixture(scope="module")
def arm64() -> Machine:
    try:
        return machine()
    except CannotSetUp as error:
        pytest.skip(f"no emulated aarch64: {error}")


def board(arm64: Machine, directory: Path, *, library: bool) -> Path:
    """Return a Python of the emulated machine that sees a board's device files, and the stand-in in /usr/lib.

    Its userland is the machine's by links, but for the directories that differ.
    """
    root = directory / "root"
    _link(arm64.directory / "root", root, {"usr", "proc", "dev"})
    _link(arm64.directory / "root" / "usr", root / "usr", {"lib"})
    _link(arm64.directory / "root" / "usr" / "lib", root / "usr" / "lib", set())
    if library:
        shutil.copy(build(machine="aarch64"), root / "usr" / "lib" / "librknnrt.so")
    (root / "proc" / "device-tree").mkdir(parents=True)
    (root / "proc" / "device-tree" / "compatible").write_bytes(COMPATIBLE)
    (root / "dev" / "dri").mkdir(parents=True)
    (root / "dev" / "dri" / "renderD129").touch()
    python = directory / "python"
    command = f"exec {EMULATOR} -L {root} -0 {arm64.python} {root}/usr/bin/python3.11"
    python.write_text(f'#!/bin/sh\n{command} "$@"\n')
    python.chmod(0o755)
    return python


def _link(source: Path, target: Path, left_out: set[str]) -> None:
    target.mkdir(parents=True)
    for child in source.iterdir():
        if child.name not in left_out:
            (target / child.name).symlink_to(child)


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S + 1300)
@pytest.mark.parametrize("library", [True, False])
def test_segments_on_the_vendor_s_toolkit(arm64: Machine, tmp_path: Path, library: bool) -> None:
    python = board(arm64, tmp_path, library=library)
    environment = arm64.environment(TEST_PATIENCE="15")
    if not library:
        environment["TOOLKIT_ALONE"] = "1"
    own = ["-p", "no:cacheprovider", "--timeout", str(TIMEOUT_S), "--basetemp", str(tmp_path / "emulated")]
    done = subprocess.run(
        [str(python), "-m", "pytest", "-q", *own, "tests/arm64/on_the_toolkit.py"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
    assert re.search(r"\b10 passed, 1 skipped" if library else r"\b1 passed, 10 skipped", done.stdout)
