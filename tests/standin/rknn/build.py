"""Builds the stand-in for librknnrt.so on demand, and keeps it until its sources or flags change.

`build()` returns the path of a `librknnrt.so` in a directory of its own, fit for RKSERVE_RUNTIME_DIRS.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import platformdirs

from tests.standin.rkllm.build import compiler_command

SOURCES = Path(__file__).parent
NAME = "librknnrt.so"
FLAGS = ("-std=c++17", "-pthread", "-Wall", "-Wextra", "-Werror", "-O2", "-fPIC", "-fvisibility=hidden")


def build(
    version: str = "2.5.0", *, machine: str | None = None, omit: Sequence[str] = (), into: Path | None = None
) -> Path:
    """Return the path of a librknnrt.so of this version, compiled if it is not in the cache.

    machine: x86_64 or aarch64; by default the one this runs on. omit: functions that are not exported. into:
    a directory to copy the file to; the copy is returned. Raises rkllm.build.NoCompiler, CalledProcessError.
    """
    exports = "{ global: rknn_*; local: " + "".join(f"{name}; " for name in omit) + "*; };"
    command = [
        *compiler_command(machine or platform.machine()),
        *FLAGS,
        f'-DSTANDIN_VERSION="{version}"',
        *map(str, sorted(SOURCES.glob("*.cpp"))),
        "-shared",
        f"-Wl,-soname,{NAME}",
    ]
    key = hashlib.sha256("\0".join([*command, exports]).encode())
    for path in sorted(SOURCES.glob("*.[hc]*")):
        key.update(path.read_bytes())
    library = platformdirs.user_cache_path("rkserve") / "standin" / key.hexdigest()[:20] / NAME
    if not library.exists():
        _compile(command, exports, library)
    if into is None:
        return library
    into.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy2(library, into / NAME))


def _compile(command: Sequence[str], exports: str, library: Path) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        made, script = Path(scratch) / NAME, Path(scratch) / "exports"
        script.write_text(exports)
        done = subprocess.run(
            [*command, f"-Wl,--version-script={script}", "-o", str(made)], capture_output=True, text=True
        )
        if done.returncode != 0:
            error = subprocess.CalledProcessError(done.returncode, list(command))
            error.add_note(done.stderr[-6000:])
            raise error
        made.replace(library)
