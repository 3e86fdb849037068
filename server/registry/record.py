"""The small record beside a model: what was learnt of its files here. Sections are written one by one.

Losing it loses no model; a section that is not understood is kept as it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from server.registry.entry import Entry

RECORD_FILE = ".record.json"


def read_record(entry: Entry, models_dir: Path) -> dict[str, Any]:
    """Return all sections by name, none where nothing readable is kept."""
    try:
        record = json.loads((entry.directory(models_dir) / RECORD_FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def write_section(entry: Entry, models_dir: Path, name: str, section: Any) -> None:
    """Set one section; the others stay. Raises OSError."""
    directory = entry.directory(models_dir)
    directory.mkdir(parents=True, exist_ok=True)
    with _alone(directory.parent):
        _replace(directory, read_record(entry, models_dir) | {name: section})


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Let nobody else write a record meanwhile: server and commands each write sections of their own.

    What is locked is the directory of all models; that of one is locked by commands for as long as they work.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks of directories, such as NFS
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(directory: Path, record: dict[str, Any]) -> None:
    with tempfile.NamedTemporaryFile(dir=directory, prefix=RECORD_FILE, delete=False) as file:
        try:
            file.write(json.dumps(record, indent=2, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.replace(file.name, directory / RECORD_FILE)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(file.name)
            raise
