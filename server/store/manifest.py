"""The hashes of a file's pieces, by which damage is found in a part of it and mended there.

A manifest lies beside a model's files and says what they are when they are whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from server.store.atomic import write_whole
from server.store.errors import StoreError, WrongBytes

PIECE_BYTES = 16 * 2**20
MOST_PIECE_BYTES = 64 * 2**20  # of a manifest made elsewhere: a piece is held in memory
MANIFEST_FILE = ".manifest.json"
MOST_MANIFEST_BYTES = 16 * 2**20

Hash = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
# Who told the hash: the entry, the hub, meta2.json of the folder, another server; seen: nobody, it was taken
# down as the file was found.
Origin = Literal["entry", "hub", "folder", "peer", "seen"]


class FileManifest(msgspec.Struct, frozen=True, kw_only=True):
    """One file as it is when it is whole. pieces: the SHA-256 of each piece_bytes of it, the last shorter."""

    name: str
    size_bytes: Annotated[int, msgspec.Meta(ge=0)]
    sha256: Hash
    piece_bytes: Annotated[int, msgspec.Meta(ge=4096, le=MOST_PIECE_BYTES)] = PIECE_BYTES
    pieces: list[Hash]
    origin: Origin = "seen"

    def __post_init__(self) -> None:
        if len(self.pieces) != piece_count(self.size_bytes, self.piece_bytes):
            raise ValueError(f"{len(self.pieces)} pieces do not make {self.size_bytes} bytes")

    def piece(self, number: int) -> tuple[int, int]:
        """Return where a piece begins and how long it is, in bytes."""
        start = number * self.piece_bytes
        return start, min(self.piece_bytes, self.size_bytes - start)


class Manifest(msgspec.Struct, frozen=True):
    """The files of a model."""

    files: list[FileManifest]
    version: Literal[1] = 1

    def of(self, name: str) -> FileManifest | None:
        """Return what is known of a file, None if nothing is."""
        return next((file for file in self.files if file.name == name), None)


def piece_count(size_bytes: int, piece_bytes: int = PIECE_BYTES) -> int:
    """Return of how many pieces a file consists."""
    return -(-size_bytes // piece_bytes)


def read_pieces(path: Path, piece_bytes: int = PIECE_BYTES) -> Iterator[memoryview]:
    """Yield a file's pieces in turn; each is valid until the next. Raises OSError."""
    buffer = bytearray(piece_bytes)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while filled := _fill(file, view):
            yield view[:filled]


def _fill(file: object, view: memoryview) -> int:
    filled = 0
    while filled < len(view) and (count := file.readinto(view[filled:])):  # type: ignore[attr-defined]
        filled += count
    return filled


def hash_file(
    path: Path,
    name: str,
    origin: Origin = "seen",
    piece_bytes: int = PIECE_BYTES,
    advance: Callable[[int], None] = lambda size_bytes: None,
) -> FileManifest:
    """Return the hashes of a file as it is now. Reads all of it.

    advance: called with the bytes that were read since its last call. Raises OSError, and WrongBytes for a
    file that changes meanwhile.
    """
    before = path.stat()
    whole = hashlib.sha256()
    pieces = []
    size = 0
    for piece in read_pieces(path, piece_bytes):
        whole.update(piece)
        pieces.append(hashlib.sha256(piece).hexdigest())
        size += len(piece)
        advance(len(piece))
    after = path.stat()
    if (before.st_mtime_ns, before.st_size, size) != (after.st_mtime_ns, after.st_size, after.st_size):
        raise WrongBytes(
            f"{path} changed while it was read. Let whatever writes it finish, then start again."
        )
    return FileManifest(
        name=name,
        size_bytes=size,
        sha256=whole.hexdigest(),
        piece_bytes=piece_bytes,
        pieces=pieces,
        origin=origin,
    )


def decode_manifest(content: bytes, whose: str) -> Manifest:
    """Return a manifest from its JSON text, checked. Raises StoreError naming `whose` it is."""
    try:
        return msgspec.json.decode(content, type=Manifest)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreError(f"the manifest of {whose} cannot be used: {error}") from error


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of a model's directory; one without files where there is none that can be read."""
    try:
        return decode_manifest((directory / MANIFEST_FILE).read_bytes(), str(directory))
    except (OSError, StoreError):
        return Manifest([])


def write_manifest(directory: Path, files: list[FileManifest]) -> None:
    """Take these files into the manifest of a model's directory; others in it stay. Raises OSError."""
    known = {file.name: file for file in read_manifest(directory).files}
    known |= {file.name: file for file in files}
    manifest = Manifest(sorted(known.values(), key=lambda file: file.name))
    write_whole(directory / MANIFEST_FILE, msgspec.json.encode(manifest) + b"\n")
