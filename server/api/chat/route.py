"""The route of chat completions: schema, translation, the one way, translation back."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from server.api.chat.answer import completion_body, new_head
from server.api.chat.schema import ChatRequest
from server.api.chat.stream import ChatStream
from server.api.chat.translate import translate
from server.api.openapi import ERRORS, json_body
from server.api.state import note_model, state_of
from server.generation.answer import collect
from server.generation.side_model import TASK_HEADER
from server.http.body import read_body
from server.http.clients import while_connected
from server.http.sse import EventStream
from server.http.validation import parse_aside

router = APIRouter()


@router.post("/v1/chat/completions", summary="Chat", responses=ERRORS, openapi_extra=json_body(ChatRequest))
async def chat_completions(request: Request) -> Response:
    """Answer a conversation, whole or as a stream of server-sent events.

    The content type is not looked at, as llama.cpp's server does it: the body is JSON or it is refused.
    """
    state = state_of(request)
    body = await read_body(request, state.max_body_bytes)
    chat = await parse_aside(ChatRequest, body, state.parsing)
    del body
    note_model(request, chat.model)
    asked = translate(chat, request.scope["rkserve.client"], request.headers.get(TASK_HEADER, ""))
    generation = await state.generations.prepare(asked)
    head = new_head(chat.model or generation.entry.id)
    headers = {}
    if generation.dropped:
        headers["x-rkserve-dropped"] = ", ".join(generation.dropped)
    if generation.by_side_model:
        headers["x-rkserve-side-model"] = generation.entry.id
    logprobs = asked.logprobs is not None
    if chat.stream:
        include_usage = chat.stream_options is not None and bool(chat.stream_options.include_usage)
        stream = ChatStream(generation, head, logprobs=logprobs, include_usage=include_usage)
        return EventStream(
            stream.events(), state=stream.state, ping_s=state.settings.stream_ping_s, headers=headers
        )
    answers, counts = await while_connected(request.receive, collect(generation))
    answer = completion_body(head, generation.fingerprint(), answers, counts, logprobs=logprobs)
    return Response(answer, media_type="application/json", headers=headers)
