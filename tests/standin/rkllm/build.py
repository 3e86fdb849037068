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
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from tests.locks import held

SOURCES = Path(__file__).parent
PATTERNS = {
    "sdk": "STANDIN_PATTERN_SDK",
    "runtime": "STANDIN_PATTERN_RUNTIME",
    "none": "STANDIN_PATTERN_NONE",
}
WARNINGS = ("-Wall", "-Wextra", "-Werror")
ZIG_GLIBC = "2.31"  # Debian 11: what the boards' older images have


# A compiler in a package, kept beside the built files, for machines that have none. Fetched once: 90 MB.
ZIG = "ziglang==0.17.1"


class NoCompiler(Exception):
    """No C++ compiler for the machine and none to be fetched; the message says what to install."""


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
    api = "api_1_2.cpp" if version.startswith("1.2.") else "api_1_3.cpp"
    tools = _Tools(_compiler(machine), ("-O1", "-fPIC", "-fvisibility=hidden"))
    objects = [
        tools.compile(_core()),
        tools.compile([SOURCES / api], ["-DSTANDIN_SHIFTED_DEFAULTS"] if shifted_defaults else []),
        tools.compile(
            [SOURCES / "version.cpp"], [f'-DSTANDIN_VERSION="{version}"', f"-D{PATTERNS[pattern]}"]
        ),
    ]
    exports = "{ global: rkllm_*; local: " + "".join(f"{name}; " for name in omit) + "*; };"
    if missing_dependency is not None:
        objects.append(tools.stub(missing_dependency))
    library = tools.link("librkllmrt.so", objects, ["-shared"], exports=exports)
    if into is None:
        return library
    into.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy2(library, into / library.name))


def build_selftest(*, machine: str | None = None, sanitizers: str = "address,undefined") -> Path:
    """The path of a program that calls the stand-in from C++, both in one file.

    Under the sanitizers where it is for this machine; static for another, so that an emulator can run it.
    """
    if machine in (None, platform.machine()):
        compiler = _compiler(platform.machine())
        flags = ["-O1", "-g", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    else:
        # zig has no static glibc
        compiler, flags = _compiler(str(machine), libc="musl"), ["-O1", "-static"]
    tools = _Tools(compiler, tuple(flags))
    version = tools.compile([SOURCES / "version.cpp"], ['-DSTANDIN_VERSION="1.3.1"'])
    rest = tools.compile([*_core(), SOURCES / "api_1_3.cpp", SOURCES / "selftest" / "selftest.cpp"])
    return tools.link("selftest", [version, rest], flags)


def compiler_command(machine: str | None = None) -> list[str]:
    """Return the command of a C++ compiler for a machine, for what else is compiled. Raises NoCompiler.

    machine: by default the one this runs on.
    """
    return _compiler(machine or platform.machine())


def _core() -> list[Path]:
    return [p for p in sorted(SOURCES.glob("*.cpp")) if not p.name.startswith(("api_1_", "version"))]


def _compiler(machine: str, libc: str = f"gnu.{ZIG_GLIBC}") -> list[str]:
    command = os.environ.get("CXX") or "g++" if machine == platform.machine() else f"{machine}-linux-gnu-g++"
    if shutil.which(command):
        return [command, "-static-libstdc++", "-static-libgcc"]
    return [zig_python(command), "-m", "ziglang", "c++", "-target", f"{machine}-linux-{libc}"]


def _cache() -> Path:
    return platformdirs.user_cache_path("rkserve") / "standin"


def zig_python(missing: str) -> str:
    """Return a Python that has ziglang: this one, or one of an environment made for it."""
    if importlib.util.find_spec("ziglang") is not None:
        return sys.executable
    home = _cache() / ZIG.replace("==", "-")
    with held(_cache() / "zig.lock"):
        return _made_zig_python(home, missing)


def _made_zig_python(home: Path, missing: str) -> str:
    python = home / "bin" / "python"
    if not (home / "complete").exists():
        uv = [sys.executable, "-m", "uv"]
        steps = (
            [*uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(home)],
            [*uv, "pip", "install", "--quiet", "--python", str(python), ZIG],
        )
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise NoCompiler(
                    f"no C++ compiler: install {missing} (Debian: g++ or g++-aarch64-linux-gnu); the package "
                    f"{ZIG} could not be fetched either: {done.stderr.strip()}"
                )
        (home / "complete").touch()
    return str(python)


@dataclass(frozen=True)
class _Tools:
    """A compiler whose results are kept, each under a hash of the command and of everything it read."""

    compiler: Sequence[str]
    flags: tuple[str, ...]

    def compile(self, sources: Sequence[Path], defines: Sequence[str] = ()) -> Path:
        """One object of these sources, in one translation unit: the headers are most of the work."""
        unit = "".join(f'#include "{path}"\n' for path in sources)
        read = [*sources, *sorted(SOURCES.glob("*.h"))]
        options = ["-std=c++17", "-pthread", *WARNINGS, *self.flags, *defines, f"-I{SOURCES}"]
        return self._kept("unit.o", [*options, "-x", "c++", "-c", "-"], read, text=unit)

    def stub(self, soname: str) -> Path:
        """A library without content, to be needed under a name that nothing else has."""
        return self._kept(
            "libstub.so", ["-shared", "-fPIC", f"-Wl,-soname,{soname}", "-x", "c++", "-"], [], text=";"
        )

    def link(
        self, name: str, objects: Sequence[Path], flags: Sequence[str], exports: str | None = None
    ) -> Path:
        command = [*flags, "-pthread", f"-Wl,-soname,{name}", "-Wl,--no-as-needed", *map(str, objects)]
        return self._kept(name, command, objects, exports=exports)

    def _kept(
        self,
        name: str,
        command: Sequence[str],
        read: Sequence[Path],
        *,
        text: str = "",
        exports: str | None = None,
    ) -> Path:
        key = hashlib.sha256("\0".join([*self.compiler, *command, text, exports or ""]).encode())
        for path in read:
            key.update(path.read_bytes())
        target = _cache() / key.hexdigest()[:20] / name
        if target.exists():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            made = Path(scratch) / name
            script = Path(scratch) / "exports"
            if exports is not None:
                script.write_text(exports)
                command = [*command, f"-Wl,--version-script={script}"]
            done = subprocess.run(
                [*self.compiler, *command, "-o", str(made)], input=text, capture_output=True, text=True
            )
            if done.returncode != 0:
                error = subprocess.CalledProcessError(done.returncode, list(command))
                error.add_note(done.stderr[-6000:])
                raise error
            made.replace(target)
        return target


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
