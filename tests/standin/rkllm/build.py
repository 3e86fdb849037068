"""Builds the stand-in for librkllmrt.so on demand, and keeps it until its sources or flags change.

`build()` returns the path of a `librkllmrt.so` in a directory of its own, fit for RKSERVE_RUNTIME_DIRS.
Knows nothing of the server or of the bindings. From a shell: `python -m tests.standin.rkllm.build --help`.
"""

import argparse
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import platformdirs

SOURCES = Path(__file__).parent
PATTERNS = {
    "sdk": "STANDIN_PATTERN_SDK",
    "runtime": "STANDIN_PATTERN_RUNTIME",
    "none": "STANDIN_PATTERN_NONE",
}
WARNINGS = ("-Wall", "-Wextra", "-Werror")
ZIG_GLIBC = "2.31"  # Debian 11: what the boards' older images have


class NoCompiler(Exception):
    """No C++ compiler for the machine; the message says what to install."""


def build(
    version: str = "1.3.1",
    *,
    machine: str | None = None,
    pattern: str | None = None,
    shifted_defaults: bool = False,
    omit: Sequence[str] = (),
    missing_dependency: str | None = None,
    into: Path | None = None,
) -> Path:
    """The path of a librkllmrt.so of this version, compiled if it is not in the cache.

    version: one that begins with 1.2. gets the structs of 1.2.x, every other those of 1.3.x.
    machine: x86_64 or aarch64; by default the one this runs on.
    pattern: how the version stands in the file's bytes: sdk, runtime or none; by default runtime
        for 1.3.0, else sdk.
    shifted_defaults: rkllm_createDefaultParam has the layout of an imagined later release.
    omit: functions that are not exported.
    missing_dependency: the soname of a library that exists nowhere and that this one needs.
    into: a directory to copy the file to; the copy is returned.

    Raises NoCompiler, and CalledProcessError with the compiler's words in its notes.
    """
    machine = machine or platform.machine()
    pattern = pattern or ("runtime" if version == "1.3.0" else "sdk")
    layout = "1_2" if version.startswith("1.2.") else "1_3"
    flags = ["-O2", "-fPIC", "-shared", "-fvisibility=hidden", f"-D{PATTERNS[pattern]}", *_version(version)]
    if shifted_defaults:
        flags.append("-DSTANDIN_SHIFTED_DEFAULTS")
    exports = "{ global: rkllm_*; local: " + "".join(f"{name}; " for name in omit) + "*; };"
    library = _cached("librkllmrt.so", layout, machine, flags, exports=exports, needs=missing_dependency)
    if into is None:
        return library
    into.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy2(library, into / library.name))


def build_selftest(*, machine: str | None = None, sanitizers: str = "address,undefined") -> Path:
    """The path of a program that calls the stand-in from C++, both in one file.

    Under the sanitizers where it is for this machine; static for another, so that an emulator can run it.
    """
    native = machine in (None, platform.machine())
    flags = ["-DSTANDIN_PATTERN_SDK", *_version("1.3.1")]
    if native:
        flags += ["-O1", "-g", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    else:
        flags += ["-O2", "-static"]
    return _cached("selftest", "1_3", machine or platform.machine(), flags, extra=["selftest/selftest.cpp"])


def _version(version: str) -> list[str]:
    return [f'-DSTANDIN_VERSION="{version}"']


def _compiler(machine: str) -> list[str]:
    candidates = (
        [os.environ.get("CXX") or "g++"] if machine == platform.machine() else [f"{machine}-linux-gnu-g++"]
    )
    for command in candidates:
        if shutil.which(command):
            return [command, "-static-libstdc++", "-static-libgcc"]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "c++", "-target", f"{machine}-linux-gnu.{ZIG_GLIBC}"]
    raise NoCompiler(
        f"no C++ compiler for {machine}: install {candidates[0]} (Debian: g++ or g++-aarch64-linux-gnu) "
        "or the Python package ziglang"
    )


def _cached(
    name: str,
    layout: str,
    machine: str,
    flags: Sequence[str],
    *,
    extra: Sequence[str] = (),
    exports: str | None = None,
    needs: str | None = None,
) -> Path:
    sources = sorted(p for p in SOURCES.glob("*.cpp") if not p.name.startswith("api_1_"))
    sources += [SOURCES / f"api_{layout}.cpp", *(SOURCES / path for path in extra)]
    compiler = _compiler(machine)
    key = hashlib.sha256("\0".join([name, machine, *compiler, *flags, exports or "", needs or ""]).encode())
    for path in [*sources, *sorted(SOURCES.glob("*.h"))]:
        key.update(path.read_bytes())
    target = platformdirs.user_cache_path("rkserve") / "standin" / key.hexdigest()[:20] / name
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        work = Path(scratch)
        # One translation unit: the standard headers, which are most of the work, are read once.
        unit = work / "all.cpp"
        unit.write_text("".join(f'#include "{path}"\n' for path in sources))
        command = [*compiler, "-std=c++17", "-pthread", *WARNINGS, *flags, f"-I{SOURCES}", str(unit)]
        if exports is not None:
            script = work / "exports"
            script.write_text(exports)
            command += [f"-Wl,--version-script={script}", f"-Wl,-soname,{name}"]
        if needs is not None:
            command += ["-Wl,--no-as-needed", str(_stub(work, compiler, needs))]
        made = work / name
        _compile([*command, "-o", str(made)])
        made.replace(target)
    return target


def _stub(work: Path, compiler: Sequence[str], soname: str) -> Path:
    source = work / "stub.cpp"
    source.write_text('extern "C" void standin_stub() {}\n')
    library = work / "libstub.so"
    _compile([*compiler, "-shared", "-fPIC", str(source), f"-Wl,-soname,{soname}", "-o", str(library)])
    return library


def _compile(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        error = subprocess.CalledProcessError(done.returncode, list(command))
        error.add_note(done.stderr[-6000:])
        raise error


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the stand-in for librkllmrt.so and print its path.")
    parser.add_argument("--version", default="1.3.1")
    parser.add_argument("--machine", choices=["x86_64", "aarch64"])
    parser.add_argument("--pattern", choices=sorted(PATTERNS))
    parser.add_argument("--into", type=Path, help="a directory to copy it to")
    options = parser.parse_args()
    print(build(options.version, machine=options.machine, pattern=options.pattern, into=options.into))


if __name__ == "__main__":
    main()
