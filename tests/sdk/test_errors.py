"""Which exception of the Python SDK each error becomes, and what can be read from it."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.sdk.calls import Watch, ask, text_of, watched_client
from tests.sdk.servers import CONTEXT_LENGTH, MAX_BODY_MB, Endpoint
from tests.serving import free_port

SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}


@pytest.mark.parametrize(
    ("request_fields", "code", "param"),
    [
        ({"temperature": 9}, "invalid_request", "temperature"),
        ({"messages": []}, "invalid_request", "messages"),
        ({"n": 0}, "invalid_request", "n"),
        ({"response_format": SCHEMA}, "unsupported_parameter", "response_format"),
        ({"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f"}}]},
         "unsupported_parameter", "tool_choice"),
    ],
)  # fmt: skip
def test_bad_requests(client: openai.OpenAI, request_fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ask("hello") | request_fields)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id
    assert param in caught.value.message


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_leaves_no_room(client: openai.OpenAI, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ask("x1" * CONTEXT_LENGTH, stream=stream))
    assert caught.value.code == "context_length_exceeded"
    assert str(CONTEXT_LENGTH) in caught.value.message


@pytest.mark.parametrize("headers", [{}, {"Authorization": openai.omit}], ids=["wrong", "none"])
def test_a_wrong_key_and_none(real: Endpoint, headers: dict[str, Any]) -> None:
    with (
        openai.OpenAI(base_url=real.base_url, api_key="sk-wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        client.chat.completions.create(**ask("hello"), extra_headers=headers)
    assert caught.value.code == "invalid_api_key"


@pytest.mark.parametrize(
    ("model", "code"), [("no-such-model", "model_not_found"), ("smollm2-135m", "model_not_installed")]
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_is_not_there(client: openai.OpenAI, model: str, code: str, stream: bool) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(**ask("hello", model=model, stream=stream))
    assert caught.value.code == code
    assert model in caught.value.message


def test_a_path_that_is_not_there(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.files.list()
    assert caught.value.code == "not_found"


def test_a_body_over_the_limit(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(**ask("x" * (MAX_BODY_MB * 2**20)))
    assert caught.value.status_code == 413
    assert caught.value.code == "body_too_large"


@pytest.mark.parametrize("stream", [False, True])
def test_a_damaged_model_is_not_asked_for_again(real: Endpoint, stream: bool) -> None:
    watch = Watch()
    with (
        watched_client(real, watch, max_retries=2) as client,
        pytest.raises(openai.InternalServerError) as caught,
    ):
        client.chat.completions.create(**ask("hello", model="broken", stream=stream))
    assert caught.value.status_code == 503
    assert caught.value.code == "model_corrupt"
    assert watch.statuses == [503]
    assert watch.headers[0]["x-should-retry"] == "false"


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_cannot_be_loaded_is_not_asked_for_again(scripted: Endpoint, stream: bool) -> None:
    watch = Watch()
    with (
        watched_client(scripted, watch, max_retries=2) as client,
        pytest.raises(openai.InternalServerError) as caught,
    ):
        client.chat.completions.create(**ask("count 1", model="broken", stream=stream))
    assert caught.value.code == "model_corrupt"
    assert watch.statuses == [503]


@pytest.mark.parametrize("stream", [False, True])
def test_a_worker_that_dies_before_the_answer(scripted: Endpoint, stream: bool) -> None:
    watch = Watch()
    with watched_client(scripted, watch, max_retries=2) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(**ask("die after 0", stream=stream))
        assert caught.value.status_code == 500
        assert caught.value.code == "backend_crashed"
        assert watch.statuses == [500]
        assert watch.headers[0]["x-should-retry"] == "false"
        # The next request gets a new worker.
        answer = client.chat.completions.create(**ask("count 2"))
    assert answer.choices[0].message.content == " 1 2"


def test_a_worker_that_dies_in_mid_stream(scripted: Endpoint) -> None:
    watch = Watch()
    pieces = []
    with watched_client(scripted, watch, max_retries=2) as client:
        stream = client.chat.completions.create(**ask("die after 3", stream=True))
        with pytest.raises(openai.APIError) as caught:
            for chunk in stream:
                pieces.append(chunk)
    assert text_of(pieces) == " 1 2 3"
    assert caught.value.code == "backend_crashed"
    assert "data:" not in caught.value.message
    assert watch.statuses == [200]


def test_a_request_that_the_backend_refuses(scripted: Endpoint) -> None:
    with (
        watched_client(scripted, Watch(), max_retries=0) as client,
        pytest.raises(openai.BadRequestError) as caught,
    ):
        client.chat.completions.create(**ask("refuse"))
    assert (caught.value.code, caught.value.param) == ("invalid_request", "messages")


def test_no_server() -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    with (
        openai.OpenAI(base_url=url, api_key="unused", max_retries=0) as client,
        pytest.raises(openai.APIConnectionError),
    ):
        client.chat.completions.create(**ask("hello"))
