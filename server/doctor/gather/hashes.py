"""What the record beside a model says of its bytes. Nothing is hashed here: that takes minutes.

The record's section `checked` holds, by a file's name, the hash it was read with, the one it should have
had, and the state of the file at that time: of a file that has changed since it says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from server.doctor.facts import HashState
from server.registry import Entry
from server.registry.record import read_record

CHECKED = "checked"


class _Checked(msgspec.Struct, frozen=True):
    sha256: str
    size_bytes: int
    mtime_ns: int
    inode: int
    expected: str | None = None
    when: str = ""


def hash_state(entry: Entry, models_dir: Path) -> HashState:
    """Return what is known; a record that is not understood counts as none."""
    outcomes = list(_outcomes(entry, models_dir))
    known = entry.sha256 is not None or any(outcome.expected for _, outcome in outcomes)
    for name, outcome in outcomes:
        expected = (_named(entry, name, models_dir) or outcome.expected or outcome.sha256).lower()
        if outcome.sha256.lower() != expected:
            return HashState(known, damaged=f"{name} has the sha256 {outcome.sha256}, not {expected}")
    compared = [outcome.when for _, outcome in outcomes if outcome.expected is not None]
    return HashState(known, checked=min(compared)[:10] if compared else None)


def _outcomes(entry: Entry, models_dir: Path) -> Iterator[tuple[str, _Checked]]:
    """Yield what was found of each file that is still the one that was read."""
    try:
        found = msgspec.convert(read_record(entry, models_dir).get(CHECKED, {}), dict[str, _Checked])
    except msgspec.MsgspecError:
        return
    path = entry.path(models_dir)
    directory = path if entry.backend == "hybrid" else path.parent
    for name, outcome in found.items():
        try:
            now = (directory / name).stat()
        except (OSError, ValueError):
            continue
        if (now.st_size, now.st_mtime_ns, now.st_ino) == (
            outcome.size_bytes,
            outcome.mtime_ns,
            outcome.inode,
        ):
            yield name, outcome


def _named(entry: Entry, name: str, models_dir: Path) -> str | None:
    """Return the hash that the entry itself names for a file: of a package it is the fetched file's."""
    return entry.sha256 if entry.backend == "rkllm" and entry.path(models_dir).name == name else None
