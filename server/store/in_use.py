"""Which processes of this machine have a model's files open or mapped: those that have it loaded."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def processes_using(directory: Path, proc: Path = Path("/proc")) -> list[int]:
    """Return the ids of the processes that use a file below a directory, as far as this user may see them."""
    begin = f"{directory.resolve()}/"
    found = []
    for process in proc.iterdir():
        if process.name.isdecimal() and int(process.name) != os.getpid():
            with contextlib.suppress(OSError):  # gone, or another user's
                if _uses(process, begin):
                    found.append(int(process.name))
    return sorted(found)


def _uses(process: Path, begin: str) -> bool:
    with (process / "maps").open(encoding="utf-8", errors="surrogateescape") as maps:
        if any(begin in line for line in maps):
            return True
    for descriptor in (process / "fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(descriptor).startswith(begin):
                return True
    return False
