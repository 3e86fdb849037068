"""Builds what a board installs: rkserve's wheel, and rkserve-kernels' for aarch64 and x86-64, into dist/.

Both architectures are compiled by zig, from the package index, against glibc 2.28, so that any machine can make
them and Debian 10 and later can run them. Run by `make wheels` with the project's environment.
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
    """Build all wheels, or those asked for; exit code 1 when one fails, whose output was shown."""
    parser = argparse.ArgumentParser(description="Build the wheels a board installs.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="directory for the wheels")
    parser.add_argument("--kernels-only", action="store_true", help="not rkserve's own wheel")
    parser.add_argument("--architecture", choices=ARCHITECTURES, action="append", help="of the kernels")
    args = parser.parse_args()
    out = args.out.resolve()
    if not args.kernels_only and _build(ROOT, out, {}) != 0:
        return 1
    with tempfile.TemporaryDirectory(prefix="rkserve-zig-") as tools:
        zig = _zig(Path(tools))
        for architecture in args.architecture or ARCHITECTURES:
            compiler = _compiler(Path(tools), zig, architecture)
            if _build(ROOT / "native", out, _cross(compiler, architecture)) != 0:
                return 1
    return 0


def _build(source: Path, out: Path, environment: dict[str, str]) -> int:
    command = [*UV, "build", "--quiet", "--wheel", "--python", sys.executable, "--out-dir", str(out), str(source)]
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
        "CMAKE_ARGS": " ".join(f"-D{name}={value}" for name, value in settings.items()),
    }


if __name__ == "__main__":
    sys.exit(main())
