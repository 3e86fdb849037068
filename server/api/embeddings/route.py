"""The route of embeddings: schema, translation, the one way, translation back."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.api.embeddings.answer import embeddings_body
from server.api.embeddings.schema import EmbeddingsRequest
from server.api.embeddings.translate import translate
from server.api.openapi import ERRORS, json_body
from server.api.state import note_model, state_of
from server.http.body import read_body
from server.http.clients import while_connected
from server.http.validation import parse_aside

router = APIRouter()


@router.post(
    "/v1/embeddings", summary="Embeddings", responses=ERRORS, openapi_extra=json_body(EmbeddingsRequest)
)
async def embeddings(request: Request) -> Response:
    """Turn texts, or lists of token ids, into vectors."""
    state = state_of(request)
    raw = await read_body(request, state.max_body_bytes)
    body = await parse_aside(EmbeddingsRequest, raw, state.parsing)
    del raw
    note_model(request, body.model)
    job = state.embeddings.prepare(translate(body, request.scope["rkserve.client"]))
    made = await while_connected(request.receive, state.embeddings.run(job))
    answer = await embeddings_body(
        body.model or job.entry.id, made, as_base64=body.encoding_format == "base64"
    )
    return Response(answer, media_type="application/json")
