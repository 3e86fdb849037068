"""An aarch64 Debian userland with CPython and the project's wheels, run by qemu's user-mode emulation.

No container and no binfmt: Debian's packages are unpacked into a directory, wheels for aarch64 into another,
and `bin/python` is a script that runs the emulator on the first with the second. A process that such a Python
starts by sys.executable is emulated, too. Compilers are scripts that run zig natively, so that what tests
compile is for aarch64. Made once, kept until what shapes it changes; nothing is mounted.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import platformdirs

from tests.locks import held
from tests.standin.rkllm.build import ZIG_GLIBC, NoCompiler, zig_python

ROOT = Path(__file__).resolve().parents[2]
EMULATOR = "qemu-aarch64-static"
DEBIAN = ("python3.11", "libgomp1", "libstdc++6")
REQUIREMENTS = ROOT / "requirements" / "all.txt"
SETUP_S = 1200


class CannotSetUp(Exception):
    """The machine cannot be made here; the message says what is missing."""


@dataclass(frozen=True)
class Machine:
    """An emulated machine. Every path is absolute and of this system."""

    directory: Path

    @property
    def python(self) -> Path:
        return self.directory / "env" / "bin" / "python"

    def environment(self, **more: str) -> dict[str, str]:
        """Return this process's environment, with compilers for the emulated machine."""
        tools = self.directory / "tools"
        own = {
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "CXX": "none",  # the stand-in is then built by zig, natively and with what is kept of it
            # Compiling the modules is half of what starting a server takes there.
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(self.directory / "bytecode"),
        }
        return {**os.environ, **own, **more}


@cache
def machine() -> Machine:
    """Return the machine, made if it is not there: 450 MB, a minute or two. Raises CannotSetUp."""
    _need_emulator()
    key = hashlib.sha256(REQUIREMENTS.read_bytes() + Path(__file__).read_bytes()).hexdigest()[:16]
    home = platformdirs.user_cache_path("rkserve") / "arm64"
    with held(home.with_suffix(".lock")):
        return _made(home, home / key)


def _made(home: Path, directory: Path) -> Machine:
    if not (directory / "complete").exists():
        shutil.rmtree(home, ignore_errors=True)
        directory.mkdir(parents=True)
        try:
            _unpack_debian(directory)
            _hide_processors(directory / "root")
            _install_wheels(directory)
            _write_scripts(directory)
        except subprocess.CalledProcessError as error:
            raise CannotSetUp(f"{' '.join(error.cmd[:4])} ... failed: {error.stderr[-500:]}") from error
        (directory / "complete").touch()
    return Machine(directory)


def _need_emulator() -> None:
    if shutil.which(EMULATOR) is not None:
        return
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        raise CannotSetUp(f"no {EMULATOR}: install Debian's qemu-user-static")
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "qemu-user-static"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=SETUP_S)
        if done.returncode != 0:
            raise CannotSetUp(f"qemu-user-static could not be installed: {done.stderr[-500:]}")


def _unpack_debian(directory: Path) -> None:
    """Fetch Debian's packages for arm64 with an apt that has a state of its own, and unpack them."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise CannotSetUp("no apt-get: the userland is made of Debian's packages")
    state = directory / "apt"
    for place in ("lists/partial", "archives/partial"):
        (state / place).mkdir(parents=True)
    (state / "status").touch()
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures::": "arm64",
        "APT::Sandbox::User": "root",
        "Dir::State": str(state),
        "Dir::State::lists": str(state / "lists"),
        "Dir::State::status": str(state / "status"),
        "Dir::Cache": str(state),
        "Dir::Cache::archives": str(state / "archives"),
        "Debug::NoLocking": "1",
    }
    apt = ["apt-get", "-qq", *(part for name, value in options.items() for part in ("-o", f"{name}={value}"))]
    _run([*apt, "update"])
    _run([*apt, "install", "--yes", "--download-only", "--no-install-recommends", *DEBIAN])
    root = directory / "root"
    for package in sorted((state / "archives").glob("*.deb")):
        _run(["dpkg-deb", "--extract", str(package), str(root)])
    shutil.rmtree(state)


def _hide_processors(root: Path) -> None:
    """Put empty files before those of /sys that list processors.

    onnxruntime takes their number from there and what they are from /proc/cpuinfo, which the emulator passes
    on as it is: the text of another architecture, and importing onnxruntime ends in a segmentation fault.
    Without a number it gives up in good order. Nothing is put under /proc: a directory of that name in `root`
    would hide the processes from psutil.
    """
    directory = root / "sys" / "devices" / "system" / "cpu"
    directory.mkdir(parents=True)
    for name in ("kernel_max", "possible", "present"):
        (directory / name).touch()


def _install_wheels(directory: Path) -> None:
    uv = [sys.executable, "-m", "uv"]
    site = directory / "env" / "lib" / "python3.11" / "site-packages"
    _run(
        [
            *uv, "pip", "install", "--quiet", "--target", str(site),
            "--python-platform", "aarch64-unknown-linux-gnu", "--python-version", "3.11",
            "--only-binary", ":all:", "--no-deps", "--require-hashes", "-r", str(REQUIREMENTS),
        ]
    )  # fmt: skip


def _write_scripts(directory: Path) -> None:
    env, root = directory / "env", directory / "root"
    (env / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11\n")
    python = env / "bin" / "python"
    # -L: where absolute paths of the emulated program lead first. -0: what sys.executable becomes.
    _script(python, f'exec {EMULATOR} -L {root} -0 {python} {root}/usr/bin/python3.11 "$@"')
    try:
        zig = f"{zig_python('a compiler for aarch64')} -m ziglang"
    except NoCompiler as error:
        raise CannotSetUp(str(error)) from error
    for name in ("gcc", "cc"):
        _script(
            directory / "tools" / name,
            f'exec {zig} cc -target aarch64-linux-gnu.{ZIG_GLIBC} -fno-sanitize=undefined "$@"',
        )


def _script(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=SETUP_S)
