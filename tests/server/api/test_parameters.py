"""Every parameter of the table: types, ranges, null, neutral values, what a model cannot honour."""

from __future__ import annotations

from typing import Any

import pytest

from server.api.chat.schema import ChatRequest
from tests.server.scripted import Served

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
STRICT = {"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {}}}


async def refused(served: Served, status: int, code: str, **body: Any) -> dict[str, Any]:
    response = await served.chat(**body)
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert served.dispatcher.jobs == []
    return error


@pytest.mark.parametrize(
    "field", [name for name in ChatRequest.model_fields if name not in ("messages", "model")]
)
async def test_null_is_the_same_as_nothing(served: Served, field: str) -> None:
    assert (await served.chat(**{field: None})).status_code == 200
    assert (await served.chat()).status_code == 200
    given, absent = served.dispatcher.jobs
    assert given == absent


async def test_null_in_every_field_at_once_of_messages_too(served: Served) -> None:
    message = {
        "role": "user",
        "content": "Hi",
        "name": None,
        "refusal": None,
        "tool_calls": None,
        "tool_call_id": None,
        "function_call": None,
        "reasoning_content": None,
    }
    body = {name: None for name in ChatRequest.model_fields} | {"model": "tiny", "messages": [message]}
    assert (await served.chat(**body)).status_code == 200
    assert (await served.chat()).status_code == 200
    given, absent = served.dispatcher.jobs
    assert given == absent


async def test_unknown_fields_are_ignored(served: Served) -> None:
    response = await served.chat(store=True, metadata={"a": 1}, what_is_this=[[[]]], service_tier="auto")
    assert response.status_code == 200


NEUTRAL: list[dict[str, Any]] = [
    {"response_format": {"type": "text"}},
    {"tool_choice": "auto"},
    {"tool_choice": "none"},
    {"tool_choice": "none", "tools": [STRICT]},
    {"tools": []},
    {"functions": [], "function_call": "none"},
    {"logit_bias": {}},
    {"min_p": 0},
    {"logprobs": False},
    {"logprobs": False, "top_logprobs": 0},
    {"n": 1},
    {"stop": []},
    {"parallel_tool_calls": False},
    {"modalities": ["text"]},
    {"regex": "", "choice": [], "grammar": "", "guided_json": {}},
    {"stream_options": {}},
    {"max_tokens": 256.0},
    {"top_k": -1},
    {"seed": -(2**63)},
    {"enable_thinking": True, "reasoning_effort": "high"},
]


@pytest.mark.parametrize("body", NEUTRAL, ids=str)
@pytest.mark.parametrize("model", ["tiny", "board"])
async def test_neutral_values_pass_on_every_model(served: Served, model: str, body: dict[str, Any]) -> None:
    response = await served.chat(model=model, **body)
    assert response.status_code == 200, response.text


CONSTRAINED: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"response_format": SCHEMA}, "response_format"),
    ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"tools": [TOOL, STRICT]}, "tools.1.function.strict"),
    ({"functions": [TOOL["function"]], "function_call": {"name": "f"}}, "function_call"),
    ({"regex": "a+"}, "regex"),
    ({"choice": ["a", "b"]}, "choice"),
    ({"grammar": "root ::= x"}, "grammar"),
    ({"guided_json": {"type": "object"}}, "guided_json"),
    ({"guided_choice": ["a"]}, "guided_choice"),
    ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ({"modalities": ["text", "audio"]}, "modalities"),
]


@pytest.mark.parametrize(("body", "param"), CONSTRAINED, ids=str)
@pytest.mark.parametrize("model", ["tiny", "board"])
async def test_what_no_model_can_be_held_to_is_refused(
    served: Served, model: str, body: dict[str, Any], param: str
) -> None:
    error = await refused(served, 400, "unsupported_parameter", model=model, **body)
    assert error["param"] == param
    assert param in error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"min_p": 0.1}, "min_p"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 3}, "logprobs"),
    ],
    ids=str,
)
async def test_what_rkllm_has_not_is_refused_there_only(
    served: Served, body: dict[str, Any], param: str
) -> None:
    error = await refused(served, 400, "unsupported_parameter", model="board", **body)
    assert error["param"] == param
    assert (await served.chat(model="tiny", **body)).status_code == 200


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"model": 5}, "model", "must be a string"),
    ({"model": "x" * 257}, "model", "must have at most 256 characters"),
    ({"messages": None}, "messages", "must be a list"),
    ({"messages": []}, "messages", "must not be empty"),
    ({"messages": {}}, "messages", "must be a list"),
    ({"messages": ["Hi"]}, "messages.0", "must be an object"),
    ({"messages": [{"content": "Hi"}]}, "messages.0.role", "is required"),
    (
        {"messages": [{"role": "user", "content": "a"}, {"role": "wizard", "content": "b"}]},
        "messages.1.role",
        "must be 'system', 'developer', 'user', 'assistant', 'tool' or 'function'",
    ),
    (
        {"messages": [{"role": "user", "content": 5}]},
        "messages.0.content",
        "must be a string or a list of parts",
    ),
    (
        {"messages": [{"role": "user", "content": {}}]},
        "messages.0.content",
        "must be a string or a list of parts",
    ),
    ({"messages": [{"role": "user", "content": ["a"]}]}, "messages.0.content.0", "must be an object"),
    (
        {"messages": [{"role": "user", "content": [{"text": "a"}]}]},
        "messages.0.content.0.type",
        "is required",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
        "messages.0.content.0.text",
        "must be a string",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages.0.content.0.text",
        "is required in a part of this type",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "smell", "text": "a"}]}]},
        "messages.0.content.0.type",
        "must be 'text', 'refusal' or 'image_url'",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "type": "function"}]}]},
        "messages.0.tool_calls.0.function",
        "is required",
    ),
    (
        {"messages": [{"role": "user", "content": "a", "tool_calls": [{"function": {"name": "f"}}]}]},
        "messages.0.tool_calls",
        "only the assistant calls tools",
    ),
    ({"stream": "yes"}, "stream", "must be true or false"),
    ({"stream": 1}, "stream", "must be true or false"),
    ({"stream_options": True}, "stream_options", "must be an object"),
    ({"n": 0}, "n", "must be at least 1"),
    ({"n": 9}, "n", "must be at most 8"),
    ({"n": 1.5}, "n", "must be a whole number"),
    ({"max_tokens": 0}, "max_tokens", "must be at least 1"),
    ({"max_tokens": -1}, "max_tokens", "must be at least 1"),
    ({"max_tokens": "256"}, "max_tokens", "must be a whole number"),
    ({"max_tokens": True}, "max_tokens", "must be a whole number"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "must be at least 1"),
    ({"stop": 5}, "stop", "must be a string or a list of strings"),
    ({"stop": ""}, "stop", "must not be empty"),
    ({"stop": ["a", ""]}, "stop.1", "must not be empty"),
    ({"stop": ["a", None]}, "stop.1", "must be a string"),
    ({"stop": ["a"] * 17}, "stop", "must have at most 16 entries, and has 17"),
    ({"temperature": 2.1}, "temperature", "must be at most 2"),
    ({"temperature": -0.1}, "temperature", "must be at least 0"),
    ({"temperature": "0.7"}, "temperature", "must be a number"),
    ({"temperature": []}, "temperature", "must be a number"),
    ({"top_p": 1.1}, "top_p", "must be at most 1"),
    ({"top_k": -2}, "top_k", "must be at least -1"),
    ({"top_k": 1.5}, "top_k", "must be a whole number"),
    ({"min_p": 2}, "min_p", "must be at most 1"),
    ({"repeat_penalty": 0}, "repeat_penalty", "must be greater than 0"),
    ({"repetition_penalty": 11}, "repetition_penalty", "must be at most 10"),
    ({"presence_penalty": 3}, "presence_penalty", "must be at most 2"),
    ({"frequency_penalty": -3}, "frequency_penalty", "must be at least -2"),
    ({"seed": 2**63}, "seed", "must be at most 9223372036854775807"),
    ({"seed": -(2**63) - 1}, "seed", "must be at least -9223372036854775808"),
    ({"seed": "x"}, "seed", "must be a whole number"),
    ({"logit_bias": []}, "logit_bias", "must be an object"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5", "must be at most 100"),
    ({"logit_bias": {"five": 1}}, "logit_bias", "must have token ids"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "must have token ids"),
    ({"logit_bias": {"9" * 400: 1}}, "logit_bias", "must have token ids"),
    ({"logprobs": 5}, "logprobs", "must be true or false"),
    ({"top_logprobs": 5}, "top_logprobs", "needs logprobs: true"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "must be at most 20"),
    ({"response_format": {}}, "response_format.type", "is required"),
    (
        {"response_format": {"type": "xml"}},
        "response_format.type",
        "must be 'text', 'json_object' or 'json_schema'",
    ),
    ({"tools": {}}, "tools", "must be a list"),
    ({"tools": [5]}, "tools.0", "must be an object"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name", "is required"),
    ({"tool_choice": "maybe"}, "tool_choice", "must be 'auto', 'none' or 'required'"),
    ({"tool_choice": 5}, "tool_choice", "must be 'auto', 'none', 'required' or an object"),
    ({"enable_thinking": "on"}, "enable_thinking", "must be true or false"),
    (
        {"chat_template_kwargs": {"enable_thinking": 3}},
        "chat_template_kwargs.enable_thinking",
        "must be true or false",
    ),
    ({"continue_final_message": True}, "continue_final_message", "last message of role assistant"),
    ({"user": {}}, "user", "must be a string"),
]


@pytest.mark.parametrize(("body", "param", "words"), WRONG, ids=lambda value: str(value)[:60])
async def test_a_wrong_field_is_named_and_explained(
    served: Served, body: dict[str, Any], param: str, words: str
) -> None:
    error = await refused(served, 400, "invalid_request", **body)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith(param)
    assert words in error["message"]
    assert "pydantic" not in error["message"]


async def test_a_missing_messages_field_is_named(served: Served) -> None:
    response = await served.client.post("/v1/chat/completions", json={"model": "tiny"})
    assert response.json()["error"]["message"] == "messages is required"


async def test_several_wrong_fields_are_counted(served: Served) -> None:
    error = await refused(served, 400, "invalid_request", temperature=5, top_p=5, n=0)
    assert error["message"] == "n must be at least 1 (and 2 more like this)"


@pytest.mark.parametrize(
    ("body", "switch"),
    [
        ({}, None),
        ({"enable_thinking": False}, False),
        ({"chat_template_kwargs": {"enable_thinking": False, "other": 5}}, False),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "low"}, True),
        ({"enable_thinking": True, "reasoning_effort": "none"}, True),
    ],
    ids=str,
)
async def test_thinking_is_switched_in_the_prompt(
    served: Served, body: dict[str, Any], switch: bool | None
) -> None:
    assert (await served.chat(model="thinker", **body)).status_code == 200
    prompt = served.dispatcher.jobs[0].params[0].prompt
    # Qwen3's template closes an empty reasoning in the prompt when it is not to think.
    assert prompt[-1].text.endswith("<think>\n\n</think>\n\n") == (switch is False)
