"""The Python SDK's asynchronous client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from tests.sdk.calls import ask, text_of
from tests.sdk.servers import Endpoint

HELD_S = 10  # a scripted model holds its turn for a minute: what is done in this time did not wait for that


@pytest.fixture
async def client(real: Endpoint) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=real.base_url, api_key=real.key, max_retries=0, timeout=30
    ) as made:
        yield made


@pytest.fixture
async def scripted_client(scripted: Endpoint) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=scripted.base_url, api_key=scripted.key, max_retries=0, timeout=30
    ) as made:
        yield made


async def streamed(client: openai.AsyncOpenAI, **request: Any) -> str:
    stream = await client.chat.completions.create(**request, stream=True)
    return text_of([chunk async for chunk in stream])


async def test_streams_at_the_same_time_get_their_own_answers(client: openai.AsyncOpenAI) -> None:
    questions = ["hello", "the world", "one word", "two boards", "how do they use it"]
    whole = [
        (await client.chat.completions.create(**ask(q, max_tokens=25))).choices[0].message.content
        for q in questions
    ]
    together = await asyncio.gather(*(streamed(client, **ask(q, max_tokens=25)) for q in questions))
    assert together == whole
    assert len(set(whole)) == len(questions)


async def test_errors_are_raised_where_they_are_awaited(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(**ask("hello", model="no-such-model"))
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(**ask("hello", temperature=9), stream=True)


async def test_closing_a_stream_frees_the_model(scripted_client: openai.AsyncOpenAI) -> None:
    stream = await scripted_client.chat.completions.create(**ask("hold"), stream=True)
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    await stream.close()
    async with asyncio.timeout(HELD_S):
        assert await streamed(scripted_client, **ask("count 3")) == " 1 2 3"


async def test_cancelling_a_request_that_is_not_streamed_frees_the_model(
    scripted_client: openai.AsyncOpenAI,
) -> None:
    with pytest.raises(asyncio.TimeoutError):
        async with asyncio.timeout(0.5):
            await scripted_client.chat.completions.create(**ask("hold"))
    async with asyncio.timeout(HELD_S):
        assert await streamed(scripted_client, **ask("count 3")) == " 1 2 3"


async def test_a_failure_in_mid_stream_is_raised_after_the_text(scripted_client: openai.AsyncOpenAI) -> None:
    stream = await scripted_client.chat.completions.create(**ask("die after 4"), stream=True)
    pieces = []
    with pytest.raises(openai.APIError) as caught:
        async for chunk in stream:
            pieces.append(chunk)
    assert text_of(pieces) == " 1 2 3 4"
    assert caught.value.code == "backend_crashed"
