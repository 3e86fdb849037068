"""Puts a runtime library under its version where discovery looks: whole or not at all.

The bytes arrive in a hidden file of the same directory, are judged there, and get their name in one step, so
that a server that looks meanwhile sees either what was there before or the whole new file. A running model
goes on with the file it has opened.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from backends.discovery import FILE_NAMES, SYSTEM_DIRS, Kind
from backends.files import NO_ROOM
from backends.identity import identify
from server.runtimes.errors import InstallError, NotPlaced, Refused
from server.runtimes.fetch import Report, fetch
from server.runtimes.judge import accepted

_PREFIX, _SUFFIX = ".rkserve-runtime-", ".partial"


@dataclass(frozen=True)
class Installed:
    """What was done. unchanged: the same bytes were there already."""

    kind: Kind
    version: str
    path: Path
    sha256: str
    unchanged: bool = False

    @property
    def library(self) -> str:
        """The library's name without its ending."""
        return FILE_NAMES[self.kind].removesuffix(".so")


def target_directory(runtime_dirs: Sequence[Path], system: Sequence[Path] = SYSTEM_DIRS) -> Path:
    """Return the directory libraries are installed in: the first that is searched and is not the system's.

    Raises NotPlaced where all are the system's, which belong to its packages.
    """
    for directory in runtime_dirs:
        if directory not in system:
            return directory
    raise NotPlaced(
        "RKSERVE_RUNTIME_DIRS names directories of the system only, which belong to its packages. Put one of "
        "your own first, such as RKSERVE_RUNTIME_DIRS=/var/lib/rkserve/runtimes:/usr/lib"
    )


def install(
    source: str,
    directory: Path,
    machine: str | None,
    *,
    sha256: str | None = None,
    replace: bool = False,
    report: Report = lambda done, what: None,
) -> Installed:
    """Install a library from a path or an address as DIRECTORY/VERSION/NAME.

    sha256: the hash it must have, if that is known. replace: take the place of other bytes of the same
    version. Raises InstallError; nothing but whole files ever stands under a library's name.
    """
    try:
        _make(directory)
        _remove_leftovers(directory)
        with _arriving(directory) as file:
            found = fetch(source, file, report)
            if sha256 is not None and found != sha256.lower():
                raise Refused(f"{source} has the sha256 {found}, not {sha256.lower()}. It is not installed.")
            file.flush()
            return _judged(source, Path(file.name), directory, machine, found, replace)
    except OSError as error:
        where = error.filename or directory
        if error.errno in NO_ROOM:
            raise NotPlaced(
                f"the disk of {directory} is full ({error.strerror}); what was written has been removed. "
                "Free some room and start again."
            ) from error
        raise NotPlaced(
            f"{where} cannot be written: {error.strerror}. Run this as the user whom {directory} belongs to "
            "(for a service: with sudo), or name another directory with RKSERVE_RUNTIME_DIRS."
        ) from error


def _judged(
    source: str, arrived: Path, directory: Path, machine: str | None, sha256: str, replace: bool
) -> Installed:
    with arrived.open("rb") as file:
        start = file.read(512)
    kind, version = accepted(identify(arrived), machine, start, source)
    path = directory / version / FILE_NAMES[kind]
    if path.exists():
        if _sha256(path) == sha256:
            return Installed(kind, version, path, sha256, unchanged=True)
        if not replace:
            raise InstallError(
                f"{path} is there already, with other bytes of the same version. --replace puts this one in "
                "its place."
            )
    _make(path.parent)
    os.chmod(arrived, 0o644)
    _sync(arrived)
    os.replace(arrived, path)
    _sync(path.parent)
    return Installed(kind, version, path, sha256)


def _make(directory: Path) -> None:
    """Make a directory that is not there, for all to read: the service runs as another user.

    One that is there stays as it is.
    """
    if not directory.is_dir():
        directory.mkdir(parents=True)
        os.chmod(directory, 0o755)


@contextlib.contextmanager
def _arriving(directory: Path) -> Iterator[IO[bytes]]:
    """Give a hidden file to fill, locked; it is removed on leaving unless it was renamed."""
    with contextlib.ExitStack() as stack:
        while True:
            file = stack.enter_context(
                tempfile.NamedTemporaryFile(dir=directory, prefix=_PREFIX, suffix=_SUFFIX, delete=False)
            )
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_nlink:
                break  # else another installation took it for a leftover before it was locked
        try:
            yield file
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file.name)


def _remove_leftovers(directory: Path) -> None:
    """Remove what killed installations left; a file in use is locked, and stays."""
    for path in directory.glob(f"{_PREFIX}*{_SUFFIX}"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
