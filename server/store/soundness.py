"""What is known of the hashes of a model's files, and whether one of them is known to be bad.

Every whole hash that is computed is kept in the model's record, with the state of the file it was computed
of: it says something of the file only as long as that is the same. Looking it up costs a few system calls.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from backends.spec import META_FILE
from server.errors import ModelCorrupt
from server.registry.entry import Entry
from server.registry.record import read_record, write_section
from server.store.manifest import Origin, read_manifest
from server.store.parts import main_part, parts_there

CHECKED, SOURCE = "checked", "source"  # sections of a model's record
_SIDE_FILES = {"file": "sha256", "data_file": "data_sha256"}  # in meta2.json


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of reading a file. expected: the hash of the whole file, None where nobody knows it.

    mtime_ns, inode, size_bytes: of the file that was read. damaged: numbers of the pieces that are bad, as
    far as a manifest tells. when: in ISO form.
    """

    sha256: str
    expected: str | None
    size_bytes: int
    mtime_ns: int
    inode: int
    damaged: list[int] = []
    when: str = ""

    def is_of(self, path: Path) -> bool:
        """Whether the file is still the one that was read."""
        try:
            now = path.stat()
        except OSError:
            return False
        return (now.st_size, now.st_mtime_ns, now.st_ino) == (self.size_bytes, self.mtime_ns, self.inode)


def checked_now(path: Path, sha256: str, expected: str | None, damaged: list[int] | None = None) -> Checked:
    """Return the outcome for a file that has just been read. Raises OSError."""
    state = path.stat()
    return Checked(
        sha256=sha256,
        expected=expected,
        size_bytes=state.st_size,
        mtime_ns=state.st_mtime_ns,
        inode=state.st_ino,
        damaged=damaged or [],
        when=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def keep_checked(entry: Entry, models_dir: Path, outcomes: Mapping[str, Checked]) -> None:
    """Write outcomes into the model's record, by the files' names. Raises OSError."""
    kept = read_checked(entry, models_dir) | dict(outcomes)
    write_section(entry, models_dir, CHECKED, msgspec.to_builtins(kept))


def read_checked(entry: Entry, models_dir: Path) -> dict[str, Checked]:
    """Return the outcomes that are kept, by the files' names."""
    try:
        return msgspec.convert(read_record(entry, models_dir).get(CHECKED, {}), dict[str, Checked])
    except msgspec.MsgspecError:
        return {}


def expected_hashes(entry: Entry, models_dir: Path) -> dict[str, tuple[str, Origin]]:
    """Return the hash that each file should have, and who says so: of several the one nearest to the source.

    Files without one are left out.
    """
    found: dict[str, tuple[str, Origin]] = {}
    for file in read_manifest(entry.directory(models_dir)).files:
        found[file.name] = file.sha256, file.origin
    if entry.backend == "hybrid":
        found |= {name: (sha256, "folder") for name, sha256 in _hashes_in_meta(entry.path(models_dir))}
    found |= {name: (sha256, "hub") for name, sha256 in _hashes_at_source(entry, models_dir)}
    if entry.backend == "rkllm" and entry.sha256 is not None:
        found[main_part(entry, models_dir).name] = entry.sha256, "entry"
    return found


def known_damage(entry: Entry, models_dir: Path) -> str | None:
    """Return what is wrong with a file of the model whose hash is known to be bad; None if none is.

    A file that has changed since its hash was computed is not known to be anything.
    """
    outcomes = read_checked(entry, models_dir)
    if not outcomes:
        return None
    expected = entry.sha256 if entry.backend == "rkllm" else None
    if entry.backend == "hybrid":
        folder = entry.path(models_dir)
        paths = {name: folder / name for name in outcomes}
    else:
        paths = {part.name: part.path for part in parts_there(entry, models_dir)}
    for name, path in paths.items():
        outcome = outcomes.get(name)
        if outcome is None or not outcome.is_of(path):
            continue
        should_be = outcome.expected
        if expected is not None and path == entry.path(models_dir):
            should_be = expected
        if should_be is not None and outcome.sha256 != should_be:
            return (
                f"{path} is damaged: its sha256 is {outcome.sha256}, and should be {should_be}"
                f"{_where(outcome)}. Mend it with rkserve repair {entry.id} --from another rkserve or a "
                f"copy, or fetch it again: rkserve rm {entry.id}, then rkserve pull {entry.id}"
            )
    return None


def check_known(entry: Entry, models_dir: Path) -> None:
    """Raise ModelCorrupt for a model with a file that is known to be damaged."""
    if (damage := known_damage(entry, models_dir)) is not None:
        raise ModelCorrupt(f"{entry.id} cannot be loaded: {damage}.")


def soundness(entry: Entry, models_dir: Path) -> bool | None:
    """Return whether all files that were ever checked are whole (True), one is not (False), or not known."""
    if known_damage(entry, models_dir) is not None:
        return False
    outcomes = read_checked(entry, models_dir)
    known = expected_hashes(entry, models_dir)
    if entry.backend == "hybrid":
        folder = entry.path(models_dir)
        named = [name for name, _ in _hashes_in_meta(folder)]
        paths = {name: folder / name for name in named}
    else:
        paths = {main_part(entry, models_dir).name: entry.path(models_dir)}
    whole = bool(paths) and all(
        (outcome := outcomes.get(name)) is not None
        and outcome.is_of(path)
        and name in known
        and known[name] == (outcome.sha256, known[name][1])
        and known[name][1] != "seen"
        for name, path in paths.items()
    )
    return True if whole else None


def _where(outcome: Checked) -> str:
    if not outcome.damaged:
        return ""
    count = len(outcome.damaged)
    return f" ({count} damaged piece{'' if count == 1 else 's'})"


def _hashes_at_source(entry: Entry, models_dir: Path) -> list[tuple[str, str]]:
    source = read_record(entry, models_dir).get(SOURCE)
    files = source.get("files") if isinstance(source, dict) else None
    if not isinstance(files, dict):
        return []
    return [(name, sha256) for name, sha256 in files.items() if isinstance(sha256, str)]


def _hashes_in_meta(folder: Path) -> list[tuple[str, str]]:
    """Return the files that a folder's description names, with their hashes; of any version of it."""
    try:
        meta = json.loads((folder / META_FILE).read_bytes())
    except (OSError, ValueError):
        return []
    if isinstance(meta, dict):
        meta.pop("source", None)  # the file it was converted from, which is no part of it
    return list(_named_files(meta))


def _named_files(value: Any) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if isinstance(value, dict):
        for key, hash_key in _SIDE_FILES.items():
            name, sha256 = value.get(key), value.get(hash_key)
            if isinstance(name, str) and isinstance(sha256, str):
                found.append((name, sha256.lower()))
        value = list(value.values())
    if isinstance(value, list):
        found += [file for inner in value for file in _named_files(inner)]
    return found
