"""The installed models' files for other rkserves to mend theirs by: manifests, and any part of a file.

A file is asked for by its hash. What a request says is looked up in the registry and in the manifest and
never becomes part of a path.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from typing import IO

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from server.api.openapi import ERRORS
from server.api.state import AppState, state_of
from server.errors import InvalidRequest, ModelCorrupt, NotFound
from server.registry import Entry
from server.store.manifest import FileManifest, Manifest, read_manifest
from server.store.parts import Part, parts_there

router = APIRouter()

CHUNK_BYTES = 2**16  # what each reader that has stopped reading keeps in memory, twice
_RANGE = re.compile(r"bytes=(\d{1,15})-(\d{1,15})?")


@router.get("/v1/models/{model}/manifest", summary="The hashes of a model's files", responses=ERRORS)
async def get_manifest(model: str, request: Request) -> Response:
    """Return what the files of an installed model are when they are whole: sizes and hashes."""
    state = state_of(request)
    entry = state.generations.installed(model)
    files = await asyncio.to_thread(_offered, state, entry)
    if not files:
        raise NotFound(f"there is no manifest of {entry.id} here; `rkserve verify {entry.id}` makes one")
    manifest = Manifest([file for file, _ in files])
    return Response(msgspec.json.encode(manifest), media_type="application/json")


@router.get(
    "/v1/models/{model}/files/{sha256}", summary="A file of a model, or a part of it", responses=ERRORS
)
async def get_file(model: str, sha256: str, request: Request) -> Response:
    """Return a file of the manifest, by its hash, or the part of it that a Range header names."""
    state = state_of(request)
    entry = state.generations.installed(model)
    files = await asyncio.to_thread(_offered, state, entry)
    found = next(((file, part) for file, part in files if file.sha256 == sha256), None)
    if found is None:
        raise NotFound(f"{entry.id} has no file with this hash here; its manifest lists what it has")
    file, part = found
    wanted = _range(request.headers.get("range"), file.size_bytes)
    start, length = wanted or (0, file.size_bytes)
    headers = {"accept-ranges": "bytes", "etag": f'"{file.sha256}"', "content-length": str(length)}
    if wanted is not None:
        headers["content-range"] = f"bytes {start}-{start + length - 1}/{file.size_bytes}"
    opened = await asyncio.to_thread(_open, part, file)
    return StreamingResponse(
        _chunks(opened, start, 0 if request.method == "HEAD" else length),
        status_code=200 if wanted is None else 206,
        headers=headers,
        media_type="application/octet-stream",
    )


def _offered(state: AppState, entry: Entry) -> list[tuple[FileManifest, Part]]:
    """Return the files of the manifest that are there."""
    models_dir = state.settings.models_dir
    manifest = read_manifest(entry.directory(models_dir))
    if not manifest.files:
        return []
    there = {part.name: part for part in parts_there(entry, models_dir)}
    return [(file, there[file.name]) for file in manifest.files if file.name in there]


def _range(header: str | None, size_bytes: int) -> tuple[int, int] | None:
    """Return where a range begins and how long it is; None where the whole is asked for."""
    if header is None:
        return None
    found = _RANGE.fullmatch(header.strip())
    start = int(found[1]) if found else size_bytes
    end = min(int(found[2]), size_bytes - 1) if found and found[2] else size_bytes - 1
    if start > end:
        raise InvalidRequest(
            f"the Range header must name one range within {size_bytes} bytes, such as bytes=0-1023", "range"
        )
    return start, end - start + 1


def _open(part: Part, file: FileManifest) -> IO[bytes]:
    try:
        opened = part.path.open("rb", buffering=0)
    except OSError as error:
        raise ModelCorrupt(f"{part.path} cannot be read: {error.strerror}") from error
    size = os.fstat(opened.fileno()).st_size
    if size != file.size_bytes:
        opened.close()
        raise ModelCorrupt(
            f"{part.path} has {size} bytes and should have {file.size_bytes}: it is damaged here"
        )
    return opened


async def _chunks(opened: IO[bytes], start: int, length: int) -> AsyncIterator[bytes]:
    """Yield a part of a file; it ends early where the file has become shorter, which the client notices."""
    with opened:
        end = start + length
        while start < end:
            size = min(CHUNK_BYTES, end - start)
            chunk = await asyncio.to_thread(os.pread, opened.fileno(), size, start)
            if not chunk:
                return
            start += len(chunk)
            yield chunk
