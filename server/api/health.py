"""Whether the server is there and ready, for people, probes and systemd."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from server.api.state import state_of
from server.errors import without_folders

router = APIRouter()


@router.get("/", summary="Hint")
async def hint() -> dict[str, str]:
    """Say what this is and where the API is."""
    return {"name": "rkserve", "api": "/v1", "openapi": "/openapi.json"}


@router.get("/health", summary="Alive")
async def health() -> dict[str, str]:
    """Answer as soon as the server serves, whatever its models do."""
    return {"status": "ok"}


@router.get("/ready", summary="Ready", responses={503: {"description": "Preloaded models are not there yet"}})
async def ready(request: Request) -> Response:
    """Answer 200 once the models that are to be preloaded are there; else say which are not, and why."""
    unready = state_of(request).dispatcher.unready()
    if not unready:
        return JSONResponse({"status": "ready"})
    loading = [model for model, reason in unready.items() if reason is None]
    failed = {model: without_folders(reason) for model, reason in unready.items() if reason is not None}
    return JSONResponse(
        {"status": "loading" if loading else "failed", "loading": loading, "failed": failed},
        status_code=503,
        headers={"retry-after": "1"} if loading else {},
    )
