"""One command at a time changes the files of a model."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from server.registry.entry import Entry
from server.store.errors import Busy


@contextlib.contextmanager
def working_on(entry: Entry, models_dir: Path) -> Iterator[Path]:
    """Give the model's directory, made if need be, to this process alone. Raises Busy and OSError.

    What is locked is the directory: a dying process lets go of it, and nothing stays behind.
    """
    directory = entry.directory(models_dir)
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno == errno.EWOULDBLOCK:
                raise Busy(
                    f"another rkserve command is at work on {entry.id}; wait until it has finished, or end it"
                ) from None
            # A file system without locks of directories, such as some kinds of NFS: the person has to see to
            # it.
        yield directory
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            directory.rmdir()  # nothing came of it; what is not empty stays
