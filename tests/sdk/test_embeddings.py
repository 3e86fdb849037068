"""What the Python SDK makes of embeddings: its own default encoding, lists, token ids, errors."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator

import openai
import pytest

from tests.sdk.servers import CONTEXT_LENGTH, EMBEDDER, EMBEDDING_SIZE, Endpoint


@pytest.fixture
def embedder(embedding: Endpoint) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=embedding.base_url, api_key=embedding.key, max_retries=0, timeout=60) as made:
        yield made


def test_the_default_encoding_and_floats_agree(embedder: openai.OpenAI) -> None:
    texts = ["hello world", "can you help?"]
    packed = embedder.embeddings.create(model=EMBEDDER, input=texts)
    floats = embedder.embeddings.create(model=EMBEDDER, input=texts, encoding_format="float")
    assert packed.data == floats.data
    assert [len(one.embedding) for one in packed.data] == [EMBEDDING_SIZE] * 2
    assert math.hypot(*packed.data[0].embedding) == pytest.approx(1, abs=1e-6)
    assert packed.usage == floats.usage
    assert embedder.embeddings.create(model=EMBEDDER, input=texts[1]).data[0].embedding == (
        packed.data[1].embedding
    )


def test_token_ids_and_dimensions(embedder: openai.OpenAI) -> None:
    made = embedder.embeddings.create(model=EMBEDDER, input=[[5, 6, 7], [8]], dimensions=10)
    assert [len(one.embedding) for one in made.data] == [10, 10]
    assert made.usage.prompt_tokens == 6  # each is ended by a token
    flat = embedder.embeddings.create(model=EMBEDDER, input=[5, 6, 7], dimensions=10)
    assert flat.data[0].embedding == made.data[0].embedding


def test_errors(embedder: openai.OpenAI, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as long:
        embedder.embeddings.create(model=EMBEDDER, input=["fits", "x1" * CONTEXT_LENGTH])
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "input.1")
    with pytest.raises(openai.BadRequestError) as chatting:
        client.embeddings.create(model="tiny", input="hello")
    assert (chatting.value.code, chatting.value.param) == ("unsupported_parameter", "model")


async def test_several_at_once(embedding: Endpoint) -> None:
    async with openai.AsyncOpenAI(
        base_url=embedding.base_url, api_key=embedding.key, max_retries=0, timeout=60
    ) as made:
        texts = [f"text number {n}" for n in range(12)]
        together = await asyncio.gather(
            *(made.embeddings.create(model=EMBEDDER, input=text) for text in texts)
        )
        whole = await made.embeddings.create(model=EMBEDDER, input=texts)
    assert [one.data[0].embedding for one in together] == [one.embedding for one in whole.data]
