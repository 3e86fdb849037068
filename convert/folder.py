"""A folder that appears whole or not at all: written beside its final place, then renamed.

The folder under way is called `.NAME.partial` and is locked, so that two runs at the same time do not mix.
What a killed run left there is removed by the next one. Linux only (flock, renameat2).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from backends.files import NO_ROOM
from backends.hybrid.meta import META_FILE
from convert.errors import ConvertError, TargetExists

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
PARTIAL, DOWNLOAD = ".partial", ".download"  # ends of the working folders' names


@contextlib.contextmanager
def new_folder(target: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Give an empty folder to fill; on leaving without an error it becomes `target`, durably and in one step.

    overwrite: replace an existing hybrid folder, which stays in use until the new one is whole. Any error,
    KeyboardInterrupt included, removes what was written. Raises ConvertError, also for a full disk and for
    other OSErrors while the folder is being written.
    """
    target = target.resolve()  # behind a symbolic link, the folder itself is what is replaced
    check_target(target, overwrite=overwrite)
    with work_folder(target.parent / f".{target.name}{PARTIAL}") as partial:
        yield partial
        _sync(partial)
        check_target(target, overwrite=overwrite)
        if target.exists() and any(target.iterdir()):
            _replace(target, partial)
        else:
            partial.rename(target)
        _sync_entry(target.parent)


@contextlib.contextmanager
def work_folder(path: Path) -> Iterator[Path]:
    """Give an empty folder of this name to work in, alone; it is removed on leaving if it is still there.

    Raises ConvertError when another process works there, and in place of OSError.
    """
    with kept_folder(path) as lock:
        _clear(path)
        try:
            yield path
        finally:
            if _same(path, lock):  # once it is renamed, the name may be another run's
                shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def kept_folder(path: Path) -> Iterator[int]:
    """Lock a folder, made if there is none, to work in it alone; what is in it stays. Yields the lock.

    Raises ConvertError when another process works there, and in place of OSError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = _lock(path)
        try:
            yield lock
        finally:
            os.close(lock)
    except OSError as error:
        raise _explained(error, path.parent) from error


def remove_leftovers(directory: Path) -> None:
    """Remove the working folders that killed runs left in `directory`; one in use is locked, and stays.

    For a directory of ours: every `.NAME.partial` and `.NAME.download` in it is taken for a working folder.
    """
    for path in [path for suffix in (PARTIAL, DOWNLOAD) for path in directory.glob(f".*{suffix}")]:
        if path.is_dir() and not path.is_symlink():
            with contextlib.suppress(ConvertError, OSError), work_folder(path):
                pass  # leaving removes it


def check_name(path: Path) -> None:
    """Raise ConvertError for a name that is no text: neither JSON nor onnxruntime could hold it."""
    try:
        str(path.resolve()).encode()
    except UnicodeError as error:
        shown = str(path).encode(errors="replace").decode()
        raise ConvertError(f"{shown} is not written in UTF-8. Rename it, or choose another name.") from error


def check_target(target: Path, *, overwrite: bool) -> None:
    """Raise TargetExists if what stands at `target` must not be replaced, ConvertError for its name."""
    check_name(target)
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    replaceable = (target / META_FILE).is_file()
    if not overwrite:
        raise TargetExists(
            f"{target} already exists. Remove it or choose another name.", replaceable=replaceable
        )
    if not replaceable:
        raise TargetExists(
            f"{target} exists and is not a hybrid folder (it has no {META_FILE}), so it is not overwritten. "
            "Choose another name.",
            replaceable=False,
        )


def check_free_space(target: Path, needed_bytes: int) -> None:
    """Raise ConvertError if the disk that `target` is to be written to has less room than is needed."""
    target = target.resolve()
    directory = next(path for path in (target, *target.parents) if path.is_dir())
    free = shutil.disk_usage(directory).free
    if free < needed_bytes:
        raise ConvertError(
            f"Not enough room for {target}: about {needed_bytes / 1e6:,.0f} MB are needed in all, "
            f"{free / 1e6:,.0f} MB are free on its disk. Free some, or choose a folder on another disk."
        )


def _lock(path: Path) -> int:
    """Make and lock the folder; return the descriptor of the lock, which a dying process lets go of."""
    while True:
        path.mkdir(exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue  # another run has just finished and renamed it
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConvertError(
                    f"Another process is writing {path} now. Wait until it has finished, or end it."
                ) from None
            if _same(path, descriptor):
                stack.pop_all()
                return descriptor


def _same(path: Path, descriptor: int) -> bool:
    """Whether the name still belongs to the folder that was locked: another run may have renamed it away."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _clear(path: Path) -> None:
    for entry in path.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _replace(target: Path, partial: Path) -> None:
    """Put `partial` in the place of `target` and remove what was there."""
    lock = _lock(target)  # for the old folder gets the working folder's name, which another run may ask for
    try:
        _exchange(partial, target)
        shutil.rmtree(partial, ignore_errors=True)
    finally:
        os.close(lock)


def _exchange(one: Path, other: Path) -> None:
    """Swap two folders in one step: renameat2(2), which Python has no function for."""
    libc = ctypes.CDLL(None, use_errno=True)
    # int renameat2(int olddirfd, const char *oldpath, int newdirfd, const char *newpath, unsigned int flags);
    arguments = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    if libc.renameat2(*arguments) != 0:
        number = ctypes.get_errno()
        raise ConvertError(
            f"{other} could not be replaced ({os.strerror(number)}): its file system cannot swap folders. "
            "Remove the old folder first, then convert again."
        )


def _sync(directory: Path) -> None:
    for root, _, files in os.walk(directory):
        for name in files:
            _sync_entry(Path(root, name))
        _sync_entry(Path(root))


def _sync_entry(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _explained(error: OSError, directory: Path) -> ConvertError:
    if error.errno in NO_ROOM:
        return ConvertError(
            f"The disk of {directory} is full ({error.strerror}); what was written has been removed. "
            "Free some room, or choose a folder on another disk, and start again."
        )
    return ConvertError(
        f"{error.strerror or error} ({error.filename or directory}). Check that the files are readable and "
        f"that {directory} can be written to, then start again."
    )
