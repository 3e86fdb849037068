"""Small helpers around the Python SDK: a question, a stream's text, a client that counts its requests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import httpx2
import openai
from openai.types.chat import ChatCompletionChunk, ChatCompletionUserMessageParam

from tests.sdk.servers import MODEL, Endpoint


def user(content: str) -> list[ChatCompletionUserMessageParam]:
    """Return a conversation of one message."""
    return [{"role": "user", "content": content}]


def ask(content: str, **more: Any) -> dict[str, Any]:
    """Return the arguments of a greedy request."""
    return {"model": MODEL, "messages": user(content), "temperature": 0} | more


def text_of(chunks: Iterable[ChatCompletionChunk], index: int = 0) -> str:
    """Return the text of one choice of a stream."""
    return "".join(
        choice.delta.content or "" for chunk in chunks for choice in chunk.choices if choice.index == index
    )


@dataclass
class Watch:
    """What a client's requests were answered with. `refused` is set when one gets a 503."""

    statuses: list[int] = field(default_factory=list)
    headers: list[httpx2.Headers] = field(default_factory=list)
    refused: Event = field(default_factory=Event)

    def __call__(self, response: httpx2.Response) -> None:
        self.statuses.append(response.status_code)
        self.headers.append(response.headers)
        if response.status_code == 503:
            self.refused.set()


def watched_client(endpoint: Endpoint, watch: Watch, max_retries: int) -> openai.OpenAI:
    """Return a client that reports each response, retried ones included."""
    return openai.OpenAI(
        base_url=endpoint.base_url,
        api_key=endpoint.key,
        max_retries=max_retries,
        timeout=30,
        http_client=openai.DefaultHttpxClient(event_hooks={"response": [watch]}),
    )
