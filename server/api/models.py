"""The installed models, with the standard fields and what else a client may want to know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request

from server.api.openapi import ERRORS
from server.api.state import AppState, state_of
from server.errors import without_folders
from server.registry import Entry, without_effect
from server.registry.blocks import HubSource
from server.registry.installing import not_installed
from server.store.soundness import known_damage, soundness

router = APIRouter()


@router.get("/v1/models", summary="Installed models", responses=ERRORS)
async def list_models(request: Request) -> dict[str, Any]:
    """List the models that can be asked now."""
    state = state_of(request)
    default = state.generations.known(None)
    entries = state.registry.installed()
    return {"object": "list", "data": [_model(state, entry, default) for entry in entries]}


@router.get("/v1/models/{name:path}", summary="One model", responses=ERRORS)
async def get_model(name: str, request: Request) -> dict[str, Any]:
    """Describe one installed model, by id or alias."""
    state = state_of(request)
    return _model(state, state.generations.installed(name), state.generations.known(None))


def _model(state: AppState, entry: Entry, default: str | None) -> dict[str, Any]:
    """Describe an entry. default: the id that a request without a model means."""
    status = state.dispatcher.status_of(entry)
    info = status.info
    warnings = list(status.warnings)
    if info is None:
        runtime, problem = state.runtimes.describe(state.registry.host(entry))
        runtime = runtime or entry.runtime
        warnings += [] if problem is None else [problem]
    else:
        runtime = info.runtime
    if status.error is not None and not status.loaded:
        warnings.append(status.error)
    if status.adapter_error is not None:
        warnings.append(status.adapter_error)
    if (problem := state.templates.problem(entry)) is not None:
        warnings.append(problem)
    warnings += [message for _, message in without_effect(entry)]
    if entry.side_model is not None:
        side = state.registry.entries[entry.side_model]
        if side not in state.registry.installed():
            warnings.append(f"side_model: {not_installed(side).message}")
    if (damage := known_damage(entry, state.settings.models_dir)) is not None:
        warnings.append(f"{damage}.")
    return {
        "id": entry.id,
        "object": "model",
        "created": _changed(entry.path(state.settings.models_dir)),
        "owned_by": _owner(entry),
        "aliases": list(entry.aliases),
        "default": entry.id == default,
        "context_length": info.context_length if info is not None else entry.context_length,
        "max_tokens": entry.max_tokens,
        "capabilities": list(entry.available(state.settings.models_dir)),
        "backend": entry.backend,
        "loaded": status.loaded,
        "runtime": runtime,
        "details": info.details if info is not None else {},
        "license": entry.license.id,
        "license_url": entry.license.url,
        "notice": entry.license.notice,
        "attribution": entry.license.attribution,
        "verified": soundness(entry, state.settings.models_dir),
        "warnings": [without_folders(warning) for warning in dict.fromkeys(warnings)],
    }


def _changed(path: Path) -> int:
    """Return when a model's files were put there, in seconds since 1970; 0 if they are gone again."""
    try:
        return int(path.stat().st_mtime)
    except OSError:
        return 0


def _owner(entry: Entry) -> str:
    """Return whose model it is as far as its source tells: the owner of the repository."""
    return entry.source.repo.partition("/")[0] if isinstance(entry.source, HubSource) else "local"
