"""The file of API keys as its owner changes it: lines of name and hash, changed by one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from server.cli.console import CommandError


@contextlib.contextmanager
def changing(path: Path) -> Iterator[list[str]]:
    """Give the lines of the file, to be changed in place; on leaving without an error they are written.

    Other processes wait meanwhile, so that none of two changes at the same time is lost. What is locked is
    the directory: the file itself is replaced by each change, and a lock file would stay behind. Raises
    CommandError.
    """
    with _alone(path):
        lines = read_lines(path)
        before = list(lines)
        yield lines
        if lines != before:
            _write(path, lines)


def read_lines(path: Path) -> list[str]:
    """Return the lines of the file, none where there is no file. Raises CommandError."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError as error:
        raise CommandError(f"{path} is not a keys file: it is not UTF-8 text") from error
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from error


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}") from error
    try:
        with contextlib.suppress(OSError):  # a file system without locks of directories, such as NFS
            fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _write(path: Path, lines: list[str]) -> None:
    """Replace the file in one step. A new one is for its owner only; another keeps its owner and mode."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)  # mode 0600
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
            if path.exists():
                before = path.stat()
                os.fchown(file.fileno(), before.st_uid, before.st_gid)
                os.fchmod(file.fileno(), before.st_mode & 0o777)
        os.replace(name, path)
    except OSError as error:
        os.unlink(name)
        raise CommandError(f"{path} cannot be written: {error.strerror}") from error
