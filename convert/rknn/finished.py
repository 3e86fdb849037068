"""Segments that are built and not yet in the folder: kept beside it, so that a build that stops can go on.

Each file has a record of what it was made from and by; one that fits no more is built again.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from backends.files import sha256_of
from convert.rknn.messages import built_name


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a segment's file depends on. sources: hashes of the graph and of its weights."""

    sources: list[str | None]
    toolkit: str
    target: str
    lengths: list[int]


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """A segment's file and how it compares with onnxruntime: the least cosine of all rows."""

    origin: Origin
    sha256: str
    size_bytes: int
    cosine: float


def keep(work: Path, segment: int, origin: Origin, cosine: float) -> Finished:
    """Record a file that has just been built. Raises OSError."""
    path = work / built_name(segment)
    finished = Finished(origin=origin, sha256=sha256_of(path), size_bytes=path.stat().st_size, cosine=cosine)
    partial = work / f"{path.stem}.partial"
    partial.write_bytes(msgspec.json.encode(finished))
    os.replace(partial, _record(work, segment))
    return finished


def find(work: Path, segment: int, origin: Origin) -> Finished | None:
    """Return what is known of a segment's file if it is whole and of that origin."""
    path = work / built_name(segment)
    try:
        finished = msgspec.json.decode(_record(work, segment).read_bytes(), type=Finished)
        whole = path.stat().st_size == finished.size_bytes and sha256_of(path) == finished.sha256
    except (OSError, msgspec.MsgspecError):
        return None
    return finished if whole and finished.origin == origin else None


def _record(work: Path, segment: int) -> Path:
    return (work / built_name(segment)).with_suffix(".json")
