"""Whether a hybrid folder has .rknn files for all its segments, by its meta2.json alone.

Neutral: the server asks before it starts a worker, since such a model needs its turn on the NPU. Checks
nothing else: what is wrong with a folder is for the engine to say.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

MOST_BYTES = 16 * 1024 * 1024


class _Build(msgspec.Struct, frozen=True):
    executor: str
    variant: str


class _Segment(msgspec.Struct, frozen=True):
    builds: list[_Build]


class _Segments(msgspec.Struct, frozen=True):
    segments: list[_Segment] | None = None


def has_npu_builds(meta: Path, variant: str | None, overlay: Path | None = None) -> bool:
    """Return whether one variant, or this one, has a .rknn of every segment. False where that cannot be read.

    overlay: a JSON file whose segments stand for those of meta2.json, if it has any.
    """
    try:
        segments = (None if overlay is None else _read(overlay)) or _read(meta) or []
    except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    offered = [{build.variant for build in one.builds if build.executor == "rknn"} for one in segments]
    everywhere = set.intersection(*offered) if offered else set()
    return bool(everywhere) if variant is None else variant in everywhere


def _read(path: Path) -> list[_Segment] | None:
    with path.open("rb") as file:
        return msgspec.json.decode(file.read(MOST_BYTES + 1), type=_Segments).segments
