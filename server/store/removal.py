"""Removes the files of a model, the description first: what is half removed must not count as installed."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from backends.spec import META_FILE
from server.registry.entry import Entry
from server.store.lock import working_on


def directory_size(directory: Path) -> int:
    """Return how much room the files of a directory take on the disk, in bytes."""
    size = 0
    for root, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                size += Path(root, name).lstat().st_blocks * 512
    return size


def remove(entry: Entry, models_dir: Path) -> int:
    """Remove everything in a model's own directory and return the bytes that this frees. Raises OSError,
    Busy.

    A directory that is a symbolic link is taken away as a link; what it leads to stays.
    """
    directory = entry.directory(models_dir)
    if directory.is_symlink():
        directory.unlink()
        return 0
    with working_on(entry, models_dir):
        size = directory_size(directory)
        (directory / META_FILE).unlink(missing_ok=True)
        path = entry.path(models_dir)
        if path.is_relative_to(directory) and path.is_file():
            path.unlink()
        shutil.rmtree(directory)
    return size
