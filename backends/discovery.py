"""Which runtime libraries of the vendor are on this machine, and which of them a model may use.

Neutral: the server asks it before it starts a worker, the worker before it opens a file. Nothing is loaded;
a library's version stands in its bytes, and only those are believed, not the name of a file or directory.

The choice: directories count in the order they are given, as in PATH, the system's places last. The first
one that holds a fitting library wins; of several in it (sub-directories named by version) the highest fitting
release wins, and a pre-release only where no release fits.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from backends.elf import NotElf, own_machine, read_header

Kind = Literal["rkllm", "rknn"]

RKLLM_ABI = SpecifierSet(">=1.3,<1.4")  # versions whose data layout we know
RKNN_ABI = SpecifierSet(">=2.3,<3")  # the same for running segments; rknn-toolkit-lite2 drives others, too
FILE_NAMES: Mapping[Kind, str] = {"rkllm": "librkllmrt.so", "rknn": "librknnrt.so"}
SYSTEM_DIRS = tuple(
    Path(directory)
    for directory in (
        "/usr/local/lib",
        "/usr/local/lib/aarch64-linux-gnu",
        "/usr/lib",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/lib",
        "/lib/aarch64-linux-gnu",
    )
)

_NUMBER = rb"(\d+\.\d+[0-9A-Za-z.+_-]{0,40})"
# The first pattern that a file matches counts. A format string ("version: %s") matches none.
_PATTERNS: Mapping[Kind, tuple[re.Pattern[bytes], ...]] = {
    "rkllm": (
        re.compile(rb"RKLLM SDK \(version: " + _NUMBER),
        re.compile(rb"rkllm-runtime version: " + _NUMBER),
    ),
    "rknn": (re.compile(rb"librknnrt version: " + _NUMBER),),
}
_CHUNK_BYTES = 1 << 20
_OVERLAP_BYTES = 128  # longer than anything a pattern matches
_VERSION_DIR = re.compile(r"v?\d+(\.\d+)*[0-9A-Za-z.+_-]*")
_RELEASE = re.compile(r"\d+(\.\d+)*")


@dataclass(frozen=True)
class RuntimeLibrary:
    """A file found. machine and version are None where the file does not tell; `problem` says why, if known.

    directory: the one of the searched directories it was found through, for the order.
    """

    path: Path
    kind: Kind
    directory: Path
    machine: str | None
    version_text: str | None
    problem: str | None = None

    @property
    def version(self) -> Version | None:
        """The version as PEP 440 understands it."""
        return None if self.version_text is None else parse_version(self.version_text)


@dataclass(frozen=True)
class Rejected:
    """A file and why it does not fit."""

    library: RuntimeLibrary
    reason: str


class NoFittingRuntime(Exception):
    """No library fits. The message lists each file found with its version, and what to do."""

    def __init__(
        self, kind: Kind, wanted: SpecifierSet, rejected: Sequence[Rejected], searched: Sequence[Path]
    ):
        self.kind = kind
        self.wanted = wanted
        self.rejected = tuple(rejected)
        self.searched = tuple(searched)
        name = FILE_NAMES[kind]
        places = ", ".join(map(str, searched)) or "no directory"
        if rejected:
            found = "; ".join(f"{item.library.path}: {item.reason}" for item in rejected)
        else:
            found = f"there is none in {places}"
        super().__init__(
            f"No {name} {wanted} was found: {found}. Install a fitting one with `rkserve runtime install "
            f"FILE|URL`, or put {name} into a directory that RKSERVE_RUNTIME_DIRS names, or into a "
            "sub-directory of it named by version."
        )


class RuntimeFinder:
    """Looks into `directories` and then `system`. Remembers what it read of a file until the file changes.

    Cheap to ask again, so it is asked before every load. May be used from any thread: the worst that two
    threads can do is to read a file twice.
    """

    def __init__(self, directories: Iterable[Path], system: Iterable[Path] = SYSTEM_DIRS) -> None:
        self.directories = (*directories, *system)
        self._read: dict[tuple[Path, int, int], tuple[str | None, str | None, str | None]] = {}

    def find(self, kind: Kind) -> list[RuntimeLibrary]:
        """Return every library of a kind, each file once, in the order in which they count."""
        found: dict[tuple[int, int], RuntimeLibrary] = {}
        for directory in self.directories:
            for path in _places(directory, FILE_NAMES[kind]):
                try:
                    stat = path.stat()
                except OSError:
                    continue
                if (stat.st_dev, stat.st_ino) not in found:
                    library = self._library(path, kind, directory, stat)
                    found[stat.st_dev, stat.st_ino] = library
        return list(found.values())

    def choose(self, kind: Kind, wanted: str | None, abi: SpecifierSet | None = None) -> RuntimeLibrary:
        """Return the library to use for a version specifier. Raises NoFittingRuntime.

        `abi` narrows the specifier to what can be driven; for rkllm it is RKLLM_ABI unless given.
        """
        if abi is None:
            abi = drivable(kind)
        both = SpecifierSet(wanted or "") & abi
        machine = own_machine()
        rejected: list[Rejected] = []
        fitting: dict[Path, list[tuple[Version, RuntimeLibrary]]] = {}
        for library in self.find(kind):
            reason = misfit(library, both, machine)
            version = library.version
            if reason is not None or version is None:
                rejected.append(Rejected(library, reason or "its version is unknown"))
            else:
                fitting.setdefault(library.directory, []).append((version, library))
        for candidates in fitting.values():
            return max(candidates, key=lambda item: (not item[0].is_prerelease, item[0]))[1]
        raise NoFittingRuntime(kind, both, rejected, self.directories)

    def _library(self, path: Path, kind: Kind, directory: Path, stat: os.stat_result) -> RuntimeLibrary:
        key = (path, stat.st_mtime_ns, stat.st_size)
        if key not in self._read:
            self._read[key] = _examine(path, kind)
        return RuntimeLibrary(path, kind, directory, *self._read[key])


def drivable(kind: Kind) -> SpecifierSet:
    """Return the versions of a library that can be driven, whatever a model wants."""
    return RKLLM_ABI if kind == "rkllm" else SpecifierSet()


def read_version(path: Path, kind: Kind) -> str | None:
    """Return the version that stands in a library's bytes, None where none does. Raises OSError.

    Reads the file once, a megabyte at a time, so that a large one fills no memory.
    """
    hits: dict[int, str] = {}
    patterns = _PATTERNS[kind]
    with path.open("rb") as file:
        kept, last = b"", False
        while not last and 0 not in hits:
            chunk = file.read(_CHUNK_BYTES)
            last = len(chunk) < _CHUNK_BYTES
            data = kept + chunk
            for rank, pattern in enumerate(patterns):
                match = pattern.search(data)
                # One that touches the end may go on in the next piece, where it is found again.
                if match and rank not in hits and (last or match.end() < len(data)):
                    hits[rank] = match[1].decode("ascii")
            kept = data[-_OVERLAP_BYTES:]
    return hits[min(hits)] if hits else None


def parse_version(text: str) -> Version | None:
    """Return a version as the vendor writes it: "1.3.1", "v1.3.1", "1.3.0b1"; None where there is none.

    A suffix that PEP 440 does not know says nothing of the order of versions, so it becomes a local label,
    which no specifier minds: "1.3.1_rc_x" counts as 1.3.1.
    """
    text = text.strip().rstrip(".")
    try:
        return Version(text)
    except InvalidVersion:
        match = _RELEASE.match(text.removeprefix("v"))
        return Version(match[0]) if match else None


def _places(directory: Path, name: str) -> Iterator[Path]:
    """Yield where a library may be under a directory: in it, then in sub-directories named by version."""
    yield directory / name
    try:
        children = [child.name for child in os.scandir(directory) if _VERSION_DIR.fullmatch(child.name)]
    except OSError:
        return
    for child in sorted(children):
        yield directory / child / name


def _examine(path: Path, kind: Kind) -> tuple[str | None, str | None, str | None]:
    """Return machine, version and problem of a file."""
    try:
        machine = read_header(path).machine
        return machine, read_version(path, kind), None
    except NotElf:
        return None, None, "no library (it has no ELF header)"
    except OSError as error:
        return None, None, f"cannot be read ({error.strerror})"


def misfit(library: RuntimeLibrary, wanted: SpecifierSet, machine: str | None) -> str | None:
    """Return why a library does not fit, None where it does."""
    checks: tuple[Callable[[], str | None], ...] = (
        lambda: library.problem,
        lambda: None if library.version is not None else "its bytes name no version",
        lambda: _outside(library, wanted),
        lambda: None if library.machine == machine else f"it is for {library.machine}, not {machine}",
    )
    return next((reason for check in checks if (reason := check()) is not None), None)


def _outside(library: RuntimeLibrary, wanted: SpecifierSet) -> str | None:
    version = library.version
    # With pre-releases: the vendor ships them as the current version. The order ranks them below releases,
    # and keeps 1.4.0b1 out of "<1.4".
    if version is not None and wanted.contains(version, prereleases=True):
        return None
    return f"version {library.version_text}, not {wanted}"
