"""Small files that appear whole or not at all, and survive a loss of power. Linux only."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

READABLE = 0o644  # whoever fetches a model, the service's user must be able to read it


def write_whole(path: Path, content: bytes, mode: int = READABLE) -> None:
    """Write or replace a file in one step, durably; its directory is made. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make what was renamed or removed in a directory last. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
