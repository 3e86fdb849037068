"""The body of a chat completion that is not streamed, and the pieces that streams share with it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from backends.base import FinishReason, TokenLogprob
from server.generation.answer import Answer, Counts


class ResponseHead(msgspec.Struct, frozen=True, kw_only=True):
    """What all of one response's objects share. `model` is the name the client asked for."""

    id: str
    created: int
    model: str


def new_head(model: str) -> ResponseHead:
    """Return the head of a new response."""
    return ResponseHead(id=f"chatcmpl-{secrets.token_hex(16)}", created=int(time.time()), model=model)


def completion_body(
    head: ResponseHead, fingerprint: str | None, answers: Sequence[Answer], counts: Counts, *, logprobs: bool
) -> bytes:
    """Return a whole chat.completion object as JSON."""
    return msgspec.json.encode(
        {
            "id": head.id,
            "object": "chat.completion",
            "created": head.created,
            "model": head.model,
            "system_fingerprint": fingerprint,
            "choices": [
                {
                    "index": index,
                    "message": _message(answer),
                    "logprobs": logprobs_object(answer.logprobs) if logprobs else None,
                    "finish_reason": finish_reason(answer.reason),
                }
                for index, answer in enumerate(answers)
            ],
            "usage": usage_object(counts),
        }
    )


def _message(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "".join(answer.text), "refusal": None}
    if reasoning := "".join(answer.reasoning):
        message["reasoning_content"] = reasoning
    return message


def finish_reason(reason: FinishReason) -> str:
    """Return the API's name of how an answer ended. A run that was cut short by us counts as stopped."""
    return "length" if reason == "length" else "stop"


def logprobs_object(logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Return the logprobs object of a choice or a chunk."""
    return {
        "content": [
            {
                "token": token.text,
                "logprob": token.logprob,
                "bytes": list(token.data),
                "top_logprobs": [
                    {"token": top.text, "logprob": top.logprob, "bytes": list(top.data)} for top in token.top
                ],
            }
            for token in logprobs
        ],
        "refusal": None,
    }


def usage_object(counts: Counts) -> dict[str, Any]:
    """Return the usage object of a response."""
    return {
        "prompt_tokens": counts.prompt_tokens,
        "completion_tokens": counts.completion_tokens,
        "total_tokens": counts.prompt_tokens + counts.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": counts.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": counts.reasoning_tokens},
    }
