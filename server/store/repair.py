"""Mends the files of a model by another copy: only the pieces that are damaged are fetched.

The mended file is made beside the damaged one, which stays as it is until the whole hash of the new one is
right. A run that was ended or killed is gone on with by the next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from server.registry.entry import Entry
from server.store.copies import Copy
from server.store.errors import StoreError, WrongBytes
from server.store.manifest import (
    FileManifest,
    Manifest,
    Origin,
    hash_file,
    read_manifest,
    read_pieces,
    write_manifest,
)
from server.store.partial import PartialFile, begun_bytes, check_room, partial_file
from server.store.parts import TOKENIZER_FILES, Part, encoder_part, main_part, parts_there
from server.store.soundness import checked_now, expected_hashes, keep_checked

_UNKNOWN: tuple[None, Origin] = (None, "seen")
Report = Callable[[float | None, str], None]


@dataclass(frozen=True)
class Mended:
    """What was done for a file. fetched: numbers of the pieces that came from the copy."""

    name: str
    path: Path
    size_bytes: int
    fetched: tuple[int, ...]
    fetched_bytes: int
    changed: bool


@dataclass(frozen=True)
class _Plan:
    """How a file should be, and who says so."""

    part: Part
    file: FileManifest
    origin: Origin
    compared: bool  # with the copy's word; else only with what was known here


def repair(
    entry: Entry,
    models_dir: Path,
    copy: Copy,
    *,
    trust: bool = False,
    report: Report = lambda done, what: None,
) -> list[Mended]:
    """Mend every file of a model that the copy can mend, and return what was done.

    trust: take the copy's word for the hash of files whose hash nobody has told here. The caller holds the
    model's lock. Raises WrongBytes where the copy has other files or is damaged itself, and other
    StoreErrors; OSError. Files before the one it fails at are mended.
    """
    done = []
    for plan in _plans(entry, models_dir, copy, trust):
        done.append(_mend(entry, models_dir, plan, copy, report))
    return done


def _plans(entry: Entry, models_dir: Path, copy: Copy, trust: bool) -> list[_Plan]:
    theirs = copy.manifest() or Manifest([])
    ours = read_manifest(entry.directory(models_dir))
    expected = expected_hashes(entry, models_dir)
    plans, unknown = [], []
    for part in _parts(entry, models_dir, ours):
        sha256, origin = expected.get(part.name, _UNKNOWN)
        listed = theirs.of(part.name)
        if part.name in TOKENIZER_FILES and listed is not None and listed.sha256 != sha256:
            listed = None  # of another commit of the base model: no reason to leave the model damaged
        if listed is None and trust and origin == "seen" and (path := copy.local(part.name)) is not None:
            listed = hash_file(path, part.name)
        if sha256 is None or origin == "seen":
            # A hash that was only taken down here may be that of a damaged file.
            if listed is None and sha256 is None:
                continue
            if listed is not None and listed.sha256 != sha256:
                if not trust:
                    unknown.append(part.name)
                    continue
                sha256, origin = listed.sha256, "peer"
        assert sha256 is not None
        file = _file(part, sha256, listed, ours.of(part.name), copy)
        plans.append(_Plan(part, file, origin, compared=listed is not None or origin != "seen"))
    if unknown:
        raise _nobody_knows(", ".join(unknown))
    if not plans:
        raise StoreError(
            f"there is nothing to compare the files of {entry.id} with: neither their hashes nor a "
            "manifest of the "
            f"copy are known. Fetch the model again: rkserve rm {entry.id}, then rkserve pull {entry.id}"
        )
    return plans


def _nobody_knows(names: str) -> StoreError:
    return StoreError(
        f"nobody has told the right hash of {names} here, and the copy has another one. If the "
        "copy is known to be right, take its word with --trust; else name the sha256 in the model's entry"
    )


def _check_against(copy: Copy, part: Part, sha256: str) -> None:
    """Raise StoreError for a file that is as its hash was taken down here, unless the copy is the same.

    It may have been damaged before, and then only the copy can tell.
    """
    path = copy.local(part.name)
    if path is None:
        raise StoreError(
            f"{part.path} is as it was when its hash was taken down here, but nobody has told whether that "
            "was right, and the copy has no manifest to compare it with. Name the sha256 in the model's "
            "entry, or run rkserve verify where the copy is"
        )
    if hash_file(path, part.name).sha256 != sha256:
        raise _nobody_knows(part.name)


def _parts(entry: Entry, models_dir: Path, ours: Manifest) -> list[Part]:
    """Return the files that are there, and those that should be."""
    parts = {part.name: part for part in parts_there(entry, models_dir)}
    if entry.backend == "hybrid":
        folder = entry.path(models_dir)
        for file in ours.files:  # made here, of files that were there
            parts.setdefault(file.name, Part(file.name, folder / file.name))
        return list(parts.values())
    for part in (main_part(entry, models_dir), encoder_part(entry, models_dir)):
        if part is not None:
            parts.setdefault(part.name, part)
    return list(parts.values())


def _file(
    part: Part, sha256: str, theirs: FileManifest | None, ours: FileManifest | None, copy: Copy
) -> FileManifest:
    """Return the pieces of the file with this hash: as the copy lists them, else as they are known here."""
    if theirs is not None and theirs.sha256 != sha256:
        raise WrongBytes(
            f"the copy has another {part.name} than this one should be: its sha256 is {theirs.sha256}, and "
            f"should be {sha256}. It may be another version of the model: name a copy of the same one"
        )
    if theirs is not None:
        return theirs
    if ours is not None and ours.sha256 == sha256:
        return ours
    path = copy.local(part.name)
    if path is None:
        raise StoreError(
            f"no manifest tells the pieces of {part.name}, neither here nor at the copy, so the damaged ones "
            "cannot be told. Fetch the model again (rkserve rm, then rkserve pull), or run rkserve verify "
            "where the copy is"
        )
    found = hash_file(path, part.name)
    if found.sha256 != sha256:
        raise WrongBytes(
            f"{path} is another file, or damaged itself: its sha256 is {found.sha256}, and should be {sha256}"
        )
    return found


def _mend(entry: Entry, models_dir: Path, plan: _Plan, copy: Copy, report: Report) -> Mended:
    part, file = plan.part, plan.file
    comparing = _step(report, f"comparing {part.name}", file.size_bytes)
    bad, whole = _compare(part.path, file, comparing)
    changed = bool(bad) or whole is None
    if not changed and whole != file.sha256:
        raise WrongBytes(
            f"{part.path} has every piece that the manifest lists, and yet the sha256 {whole}, not "
            f"{file.sha256}: the manifest contradicts itself, so nothing was changed. Name another copy"
        )
    fetched: list[int] = []
    if changed:
        size = sum(file.piece(number)[1] for number in range(len(file.pieces)))
        check_room(part.path.parent, max(0, size - begun_bytes(part.path, file.sha256)), part.name)
        with partial_file(part.path, file.sha256) as partial:
            fetched = _fill(partial, part, file, bad, copy, report)
            checking = _step(report, f"checking {part.name}", file.size_bytes)
            found = hash_file(partial.path, part.name, plan.origin, file.piece_bytes, checking)
            if found.sha256 != file.sha256:
                partial.discard()
                raise WrongBytes(
                    f"{part.name} put together from the copy has the sha256 {found.sha256}, and should have "
                    f"{file.sha256}: the copy's manifest contradicts itself, so nothing was changed"
                )
            partial.finish()
    if not changed and not plan.compared:
        _check_against(copy, part, file.sha256)
    known = FileManifest(
        name=part.name,
        size_bytes=file.size_bytes,
        sha256=file.sha256,
        piece_bytes=file.piece_bytes,
        pieces=file.pieces,
        origin=plan.origin,
    )
    write_manifest(entry.directory(models_dir), [known])
    keep_checked(entry, models_dir, {part.name: checked_now(part.path, file.sha256, file.sha256)})
    count = sum(file.piece(number)[1] for number in fetched)
    return Mended(part.name, part.path, file.size_bytes, tuple(fetched), count, changed)


def _compare(path: Path, file: FileManifest, advance: Callable[[int], None]) -> tuple[list[int], str | None]:
    """Return the numbers of the pieces that a file does not have, all where it is not there, and its whole
    hash, None where its length is wrong: what the pieces are is the copy's word alone.
    """
    good: set[int] = set()
    whole = hashlib.sha256()
    right_length = False
    if path.is_file():
        for number, piece in enumerate(read_pieces(path, file.piece_bytes)):
            advance(len(piece))
            whole.update(piece)
            right = number < len(file.pieces) and hashlib.sha256(piece).hexdigest() == file.pieces[number]
            if right:
                good.add(number)
        right_length = path.stat().st_size == file.size_bytes
        if not right_length and len(good) == len(file.pieces):
            good.discard(len(file.pieces) - 1)  # whole, but for what follows it
    bad = [number for number in range(len(file.pieces)) if number not in good]
    return bad, whole.hexdigest() if right_length else None


def _fill(
    partial: PartialFile, part: Part, file: FileManifest, bad: list[int], copy: Copy, report: Report
) -> list[int]:
    """Put the good pieces and the copy's into the partial file; return the numbers of those that were
    fetched.

    The copy's come first: where it cannot give them, nothing was copied in vain.
    """
    fresh = partial.size_bytes == 0
    if partial.size_bytes != file.size_bytes:
        partial.resize(file.size_bytes)
    fetched = []
    for count, number in enumerate(bad):
        start, length = file.piece(number)
        report(count / len(bad), f"fetching {part.name}, piece {count + 1} of {len(bad)}")
        if not fresh and _is(partial.read_at(start, length), file, number):
            continue  # an earlier run has fetched it
        data = copy.read(file, start, length)
        if not _is(data, file, number):
            raise WrongBytes(
                f"piece {number} of {part.name} is damaged at the copy, too, or was changed on the way. "
                "Nothing "
                "was changed here; what is right is kept for the next try, with this copy or another"
            )
        partial.write_at(start, data)
        fetched.append(number)
    copying = _step(report, f"copying the rest of {part.name}", file.size_bytes)
    for number, piece in _good(part.path, file, set(bad)):
        start, length = file.piece(number)
        if not fresh or piece.tobytes().count(0) != length:  # where nothing was written there are zeros
            partial.write_at(start, piece)
        copying(length)
    return fetched


def _good(path: Path, file: FileManifest, bad: set[int]) -> Iterator[tuple[int, memoryview]]:
    if len(bad) == len(file.pieces):
        return
    for number, piece in enumerate(read_pieces(path, file.piece_bytes)):
        if number < len(file.pieces) and number not in bad:
            yield number, piece[: file.piece(number)[1]]


def _is(data: bytes, file: FileManifest, number: int) -> bool:
    return hashlib.sha256(data).hexdigest() == file.pieces[number]


def _step(report: Report, what: str, size_bytes: int) -> Callable[[int], None]:
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        report(min(1.0, done / size_bytes) if size_bytes else 1.0, what)

    return advance
