"""A file under way: beside its final place, under a name that says of what content it is the beginning.

It is called `.NAME.IDENTITY.partial`. A run that was ended, killed or cut off leaves it, and the next one for
the same content goes on with it; a beginning of other content is removed. It gets its final name only by
`finish`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from backends.files import NO_ROOM
from server.store.atomic import READABLE, sync_directory
from server.store.errors import Busy, NoRoom

SUFFIX = ".partial"
IDENTITY_CHARS = 16  # of a hash: enough to tell contents of one file name apart
MARGIN_BYTES = 32 * 2**20  # left free for the records, and for others' small files


class PartialFile:
    """An open partial file, for this process alone. Nothing is buffered: what was written is in the file."""

    def __init__(self, final: Path, path: Path, descriptor: int) -> None:
        self.final = final
        self.path = path
        self._descriptor = descriptor

    @property
    def size_bytes(self) -> int:
        """How much of it there is."""
        return os.fstat(self._descriptor).st_size

    def read_at(self, offset: int, length: int) -> bytes:
        """Return what stands at a place, less where the file ends before. Raises OSError."""
        return os.pread(self._descriptor, length, offset)

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        """Write all of `data` at a place. Raises OSError."""
        view = memoryview(data)
        while view:
            written = os.pwrite(self._descriptor, view, offset)
            view, offset = view[written:], offset + written

    def resize(self, size_bytes: int) -> None:
        """Cut it, or lengthen it by zeros that take no room. Raises OSError."""
        os.ftruncate(self._descriptor, size_bytes)

    def finish(self) -> None:
        """Give the file its final name, durably and in one step, over what is there. Raises OSError."""
        os.fchmod(self._descriptor, READABLE)
        os.fsync(self._descriptor)
        os.replace(self.path, self.final)
        sync_directory(self.final.parent)

    def discard(self) -> None:
        """Remove it. Raises OSError."""
        self.path.unlink(missing_ok=True)


@contextlib.contextmanager
def partial_file(final: Path, identity: str) -> Iterator[PartialFile]:
    """Open the partial file of some content for `final`, an empty one where there is none.

    identity: hexadecimal, of the content. Left with an error the file stays, to be gone on with. Raises Busy
    where another process writes it, NoRoom in place of the system's errors of a full disk.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    path = final.with_name(f".{final.name}.{identity[:IDENTITY_CHARS]}{SUFFIX}")
    remove_partials(final, but=path)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):  # some kinds of NFS
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Busy(
                    f"another process is writing {path}; wait until it has finished, or end it"
                ) from None
        yield PartialFile(final, path, descriptor)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise NoRoom(
                f"the disk of {final.parent} is full; what has been fetched is kept in {path.name} there. "
                "Free some room and start again: it goes on where it was"
            ) from error
        raise
    finally:
        os.close(descriptor)


def remove_partials(final: Path, but: Path | None = None) -> int:
    """Remove the beginnings of a file, save one and those in use; return how many bytes that frees."""
    freed = 0
    for path in partials_of(final):
        if path == but:
            continue
        with contextlib.suppress(OSError):
            freed += path.stat().st_blocks * 512
            path.unlink()
    return freed


def partials_of(final: Path) -> list[Path]:
    """Return the beginnings of a file that lie beside its place."""
    if not final.parent.is_dir():
        return []
    begin = f".{final.name}."
    return sorted(
        path
        for path in final.parent.iterdir()
        if path.name.startswith(begin)
        and path.name.endswith(SUFFIX)
        and set(path.name[len(begin) : -len(SUFFIX)]) <= set("0123456789abcdef")
    )


def begun_bytes(final: Path, identity: str) -> int:
    """Return how much of a file has been fetched already."""
    path = final.with_name(f".{final.name}.{identity[:IDENTITY_CHARS]}{SUFFIX}")
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


def check_room(directory: Path, needed_bytes: int, what: str) -> None:
    """Raise NoRoom if the disk of a directory has less room than is needed and some is to be left."""
    existing = next(path for path in (directory, *directory.parents) if path.is_dir())
    free = shutil.disk_usage(existing).free
    if needed_bytes and free < needed_bytes + MARGIN_BYTES:
        raise NoRoom(
            f"not enough room for {what} in {directory}: {needed_bytes / 1e6:,.0f} MB are needed and "
            f"{free / 1e6:,.0f} MB are free on its disk. Free some (rkserve rm ID removes a model), or "
            "choose a directory on another disk with RKSERVE_MODELS_DIR"
        )
