"""The numbers of the server for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.api.state import state_of
from server.metrics.exposition import CONTENT_TYPE

PATH = "/metrics"

router = APIRouter()


@router.get(PATH, summary="Numbers for Prometheus")
async def metrics(request: Request) -> Response:
    """Answer what has been counted and how things stand, in Prometheus' text format."""
    return Response(await state_of(request).exposition.text(), headers={"content-type": CONTENT_TYPE})
