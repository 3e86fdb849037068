"""A full queue: the Python SDK tries again and succeeds; a stream that is closed makes room."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import openai
import pytest

from tests.sdk.calls import Watch, ask, text_of, watched_client
from tests.sdk.servers import QUEUE_SIZE, Endpoint

# The server estimates Retry-After from how long jobs take, and begins with a careful guess.
SHORT_JOBS = 14


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def client(scripted: Endpoint, watch: Watch) -> Iterator[openai.OpenAI]:
    with watched_client(scripted, watch, max_retries=4) as made:
        for _ in range(SHORT_JOBS):
            made.chat.completions.create(**ask("count 1"))
        watch.statuses.clear()
        yield made


@contextmanager
def occupied(scripted: Endpoint) -> Iterator[None]:
    """Hold the model and every place in its queue with streams until the block ends."""
    with ExitStack() as stack, watched_client(scripted, Watch(), max_retries=0) as other:
        for _ in range(1 + QUEUE_SIZE):
            # Returns with the headers: with the first text, or with the first comment of one that waits.
            stack.enter_context(other.chat.completions.create(**ask("hold"), stream=True))
        yield


def test_a_refused_request_is_retried_and_succeeds(
    scripted: Endpoint, client: openai.OpenAI, watch: Watch
) -> None:
    with ThreadPoolExecutor(1) as pool:
        with occupied(scripted):
            waiting = pool.submit(
                lambda: text_of(client.chat.completions.create(**ask("count 3", stream=True)))
            )
            assert watch.refused.wait(10)
        assert waiting.result(20) == " 1 2 3"
    assert watch.statuses[-1] == 200
    assert set(watch.statuses[:-1]) == {503}
    refusal = watch.headers[-len(watch.statuses)]
    assert 1 <= int(refusal["retry-after"]) <= 60
    assert "x-should-retry" not in refusal


def test_without_retries_the_refusal_is_raised(scripted: Endpoint) -> None:
    with (
        occupied(scripted),
        watched_client(scripted, Watch(), max_retries=0) as impatient,
        pytest.raises(openai.InternalServerError) as caught,
    ):
        impatient.chat.completions.create(**ask("count 3", stream=True))
    assert caught.value.status_code == 503
    assert caught.value.code == "server_busy"


def test_a_closed_stream_frees_the_model(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(**ask("hold", stream=True))
    for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    stream.close()
    after = client.with_options(timeout=10).chat.completions.create(**ask("count 3", stream=True))
    assert text_of(after) == " 1 2 3"
