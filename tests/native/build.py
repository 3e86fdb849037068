"""Compiles native/ for this machine on demand, by the compiler at hand; kept until a source changes.

Faster than making a wheel of it, which the slow tier does.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import platformdirs
import pytest

from tests.locks import held

NATIVE = Path(__file__).resolve().parents[2] / "native"
FLAGS = ("-std=gnu++20", "-O3", "-Wall", "-Wextra", "-Werror", "-ffp-contract=fast", "-fPIC", "-pthread")
FOR_MACHINE = {"x86_64": ("-mavx2", "-mfma", "-mf16c"), "aarch64": ()}
# As in CMakeLists.txt; GCC 12 finds fault with its own header there.
FOR_FILE = {
    ("x86_64", "decode_wide.cpp"): (
        "-mavx512f",
        "-mavx512dq",
        "-Wno-uninitialized",
        "-Wno-maybe-uninitialized",
    )
}


def site_directory() -> Path:
    """Return a directory that holds the package rkserve_kernels. Skips where there is no C++ compiler.

    NATIVE_SITE names one that is to be taken as it is, made elsewhere for this machine.
    """
    if given := os.environ.get("NATIVE_SITE"):
        return Path(given)
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    sources = sorted((NATIVE / "src").glob("*.cpp"))
    package = sorted((NATIVE / "rkserve_kernels").iterdir())
    include = sysconfig.get_path("include")
    command = [compiler, *FLAGS, *FOR_MACHINE[platform.machine()], f"-I{include}"]
    digest = hashlib.sha256("\0".join(map(str, (*command, FOR_FILE))).encode())
    for path in (*sources, *sorted((NATIVE / "src").glob("*.h")), *package):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    home = platformdirs.user_cache_path("rkserve") / "native"
    site = home / digest.hexdigest()[:16]
    home.mkdir(parents=True, exist_ok=True)
    with held(home / "lock"):
        target = site / "rkserve_kernels"
        if not (target / "_kernels.abi3.so").exists():
            target.mkdir(parents=True, exist_ok=True)
            for path in package:
                if path.is_file():
                    shutil.copy(path, target)
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                objects = list(pool.map(lambda source: _compiled(command, source, target), sources))
            half = target / "half.so"
            subprocess.run([*command, "-shared", *objects, "-o", half], check=True, timeout=600)
            half.rename(target / "_kernels.abi3.so")
    return site


def _compiled(command: list[str], source: Path, into: Path) -> Path:
    """Compile one file; return the object file."""
    made = into / f"{source.stem}.o"
    flags = FOR_FILE.get((platform.machine(), source.name), ())
    subprocess.run([*command, *flags, "-c", source, "-o", made], check=True, timeout=600)
    return made
