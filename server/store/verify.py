"""Reads the files of a model and compares them with the hashes they should have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from server.registry.entry import Entry
from server.store.errors import StoreError
from server.store.manifest import (
    PIECE_BYTES,
    FileManifest,
    Origin,
    hash_file,
    read_manifest,
    write_manifest,
)
from server.store.parts import Part, parts_there
from server.store.soundness import Checked, checked_now, expected_hashes, keep_checked

State = Literal["whole", "damaged", "seen"]
_UNKNOWN: tuple[None, Origin] = (None, "seen")


@dataclass(frozen=True)
class Verdict:
    """What became of a file. seen: nobody knows its hash, so it was taken down for later checks.

    damaged: the numbers of the bad pieces, of piece_bytes each; none where no manifest tells which they are.
    """

    name: str
    path: Path
    state: State
    size_bytes: int
    sha256: str
    expected: str | None
    origin: Origin
    damaged: tuple[int, ...] = ()
    piece_bytes: int = PIECE_BYTES


class NotKept(StoreError):
    """Everything was read and judged, but the outcome cannot be written beside the model."""

    def __init__(self, directory: Path, error: OSError, verdicts: list[Verdict]) -> None:
        super().__init__(
            f"what was found could not be written down in {directory}: {error.strerror}. A server goes on as "
            "before: free some room there, or make it writable, and verify again"
        )
        self.verdicts = verdicts


def size_to_verify(entry: Entry, models_dir: Path) -> int:
    """Return how many bytes `verify` will read. Raises OSError."""
    return sum(part.path.stat().st_size for part in parts_there(entry, models_dir))


def verify(
    entry: Entry,
    models_dir: Path,
    advance: Callable[[str, int], None] = lambda name, size_bytes: None,
) -> list[Verdict]:
    """Read every file of a model, compare, and keep the outcomes, and a manifest of what is whole.

    The caller holds the model's lock. advance: called with a file's name and the bytes that were read since.
    Raises OSError and WrongBytes; NotKept, with the verdicts, where they cannot be written down.
    """
    return verify_parts(entry, models_dir, parts_there(entry, models_dir), advance)


def verify_parts(
    entry: Entry,
    models_dir: Path,
    parts: Sequence[Part],
    advance: Callable[[str, int], None] = lambda name, size_bytes: None,
) -> list[Verdict]:
    """As `verify`, of some of a model's files."""
    expected = expected_hashes(entry, models_dir)
    refused: OSError | None = None
    manifest = read_manifest(entry.directory(models_dir))
    verdicts, whole, outcomes = [], [], {}
    for part in parts:
        known = manifest.of(part.name)
        sha256, origin = expected.get(part.name, _UNKNOWN)
        found = hash_file(
            part.path,
            part.name,
            origin,
            PIECE_BYTES if known is None else known.piece_bytes,
            partial(advance, part.name),
        )
        verdict = _judge(part, found, known, sha256)
        verdicts.append(verdict)
        if verdict.state != "damaged":
            whole.append(found)
        outcomes[part.name] = _outcome(verdict, found)
        # After each file: what is found bad must not be forgotten if this run is ended.
        try:
            keep_checked(entry, models_dir, {part.name: outcomes[part.name]})
        except OSError as error:
            refused = error  # a full disk: what is found must be told all the same
    try:
        write_manifest(entry.directory(models_dir), whole)
    except OSError as error:
        refused = refused or error
    if refused is not None:
        raise NotKept(entry.directory(models_dir), refused, verdicts) from refused
    return verdicts


def damaged_pieces(found: FileManifest, known: FileManifest) -> tuple[int, ...]:
    """Return the numbers of the pieces of `known` that `found` does not have, or has otherwise."""
    return tuple(
        number
        for number, sha256 in enumerate(known.pieces)
        if number >= len(found.pieces) or found.pieces[number] != sha256
    )


def _judge(part: Part, found: FileManifest, known: FileManifest | None, expected: str | None) -> Verdict:
    if expected is None:
        state: State = "seen"
    else:
        state = "whole" if found.sha256 == expected else "damaged"
    damaged: tuple[int, ...] = ()
    if state == "damaged" and known is not None and known.sha256 == expected:
        damaged = damaged_pieces(found, known)
    return Verdict(
        name=part.name,
        path=part.path,
        state=state,
        size_bytes=found.size_bytes,
        sha256=found.sha256,
        expected=expected,
        origin=found.origin,
        damaged=damaged,
        piece_bytes=found.piece_bytes,
    )


def _outcome(verdict: Verdict, found: FileManifest) -> Checked:
    return checked_now(verdict.path, found.sha256, verdict.expected, list(verdict.damaged))
