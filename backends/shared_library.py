"""Opening one of the vendor's libraries. Whatever can be wrong with a file is a distinct error:

LibraryError
+- LibraryNotFound        no such file, or not readable
+- WrongArchitecture      no ELF file, or one for another machine
+- DependencyMissing      a library it needs is not there; mostly libgomp
+- NotLoadable            the system's loader refuses it
   (each library's own module adds what its API asks for)

Knows no versions (see backends.discovery) and no functions.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

from backends.elf import NotElf, needed, own_machine, read_header

_PACKAGES = {"libgomp.so.1": "libgomp1", "libstdc++.so.6": "libstdc++6", "libgcc_s.so.1": "libgcc-s1"}


class LibraryError(Exception):
    """A runtime library that cannot be used; the message says why and what to do."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message


class LibraryNotFound(LibraryError):
    """The file is not there or cannot be read."""


class WrongArchitecture(LibraryError):
    """The file is for another machine. `machine` is what it is for, None where it is no library."""

    def __init__(self, path: Path, message: str, machine: str | None) -> None:
        super().__init__(path, message)
        self.machine = machine


class DependencyMissing(LibraryError):
    """Libraries that it needs, `names`, are not there."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        packages = [_PACKAGES[name] for name in names if name in _PACKAGES]
        remedy = f"apt install {' '.join(packages)}" if packages else "Install what provides it"
        super().__init__(
            path,
            f"{path} needs {', '.join(names)}, which this system does not have. {remedy}, then try again.",
        )
        self.names = tuple(names)


class NotLoadable(LibraryError):
    """The system's loader refuses it for another reason, which the message repeats."""


def open_shared(path: Path) -> ctypes.CDLL:
    """Open a library for this machine. Raises LibraryError.

    Its symbols stay its own: two versions in one process would not mix them up.
    """
    _check_machine(path)
    try:
        return ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
    except OSError as error:
        if absent := _absent(path):
            raise DependencyMissing(path, absent) from error
        raise NotLoadable(
            path, f"{path} cannot be loaded: {error}. Fetch the file again, or choose another one."
        ) from error


def _check_machine(path: Path) -> None:
    ours = own_machine()
    try:
        machine = read_header(path).machine
    except OSError as error:
        raise LibraryNotFound(
            path,
            f"{path} cannot be read: {error.strerror}. Put {path.name} there, or correct "
            "RKSERVE_RUNTIME_DIRS.",
        ) from error
    except NotElf as error:
        raise WrongArchitecture(
            path,
            f"{path} is no library: it has no ELF header. Fetch the file again (a Git LFS pointer or an "
            "error page may have been saved in its place).",
            None,
        ) from error
    if machine != ours:
        raise WrongArchitecture(
            path,
            f"{path} is for {machine}, and this process runs on {ours or 'another system'}. Take the library "
            "from the vendor's directory for this machine.",
            machine,
        )


def _absent(path: Path) -> list[str]:
    """Return the libraries that `path` needs and that cannot be loaded, by name or from beside it."""
    try:
        names = needed(path)
    except (OSError, NotElf):
        return []
    return [name for name in names if not (_loads(name) or _loads(str(path.parent / name)))]


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
