"""Builds the wheels of rkserve-kernels (native/) for aarch64 and x86-64: a part of `make wheels`.

Both are compiled by zig, from the package index, against glibc 2.28, so that any machine can make them and
Debian 10 and later can run them.
"""

from __future__ import annotations

import argparse
import os
import shlex
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ZIG = "ziglang==0.17.1"
GLIBC = "2.28"  # what manylinux_2_28 in native/pyproject.toml promises
ARCHITECTURES = ("aarch64", "x86_64")
UV = (sys.executable, "-m", "uv")


def main() -> int:
    """Build the wheels, or those asked for; exit code 1 when one fails, whose output was shown."""
    parser = argparse.ArgumentParser(description="Build the wheels of rkserve-kernels.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="directory for the wheels")
    parser.add_argument("--architecture", choices=ARCHITECTURES, action="append", help="only this one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rkserve-zig-") as tools:
        zig = _zig(Path(tools))
        for architecture in args.architecture or ARCHITECTURES:
            print(f"wheels: compiling rkserve-kernels for {architecture}, which takes minutes", flush=True)
            compiler = _compiler(Path(tools), zig, architecture)
            if _build(ROOT / "native", args.out.resolve(), _cross(compiler, architecture)) != 0:
                return 1
    return 0


def _build(source: Path, out: Path, environment: dict[str, str]) -> int:
    command = [
        *UV,
        "build",
        "--quiet",
        "--wheel",
        "--python",
        sys.executable,
        "--out-dir",
        str(out),
        str(source),
    ]
    code = subprocess.run(command, env={**os.environ, **environment}, check=False).returncode
    if code != 0:
        print(f"wheels: building {source.name} failed; what was wrong stands above", file=sys.stderr)
    return code


def _zig(tools: Path) -> Path:
    """Return a Python that has ziglang, in an environment of its own."""
    python = tools / "env" / "bin" / "python"
    subprocess.run([*UV, "venv", "--quiet", "--python", sys.executable, str(tools / "env")], check=True)
    subprocess.run([*UV, "pip", "install", "--quiet", "--python", str(python), ZIG], check=True)
    return python


def _compiler(tools: Path, zig: Path, architecture: str) -> Path:
    path = tools / f"c++-{architecture}"
    target = f"{architecture}-linux-gnu.{GLIBC}"
    # zig counts undefined behaviour as an end of the program unless told otherwise.
    command = [str(zig), "-m", "ziglang", "c++", "-target", target, "-fno-sanitize=undefined"]
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def _cross(compiler: Path, architecture: str) -> dict[str, str]:
    settings = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": architecture,
        "CMAKE_CXX_COMPILER": str(compiler),
    }
    return {
        "RKSERVE_KERNELS_FOR": architecture,
        "ZIG_GLOBAL_CACHE_DIR": str(compiler.parent / "cache"),  # else in the user's cache for ever
        "CMAKE_ARGS": " ".join(f"-D{name}={value}" for name, value in settings.items()),
    }


if __name__ == "__main__":
    sys.exit(main())
