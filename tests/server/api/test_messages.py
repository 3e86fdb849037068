"""Messages of a request as the templates get them."""

from __future__ import annotations

from typing import Any

import pytest

from server.api.chat.messages import normalised
from server.api.chat.schema import ChatMessage
from server.errors import InvalidRequest, UnsupportedParameter

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def normal(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return normalised([ChatMessage.model_validate(message) for message in messages])


def test_roles_and_contents() -> None:
    assert normal(
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": None},
        {"role": "user", "content": [], "name": "anna"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": [{"type": "text", "text": "4"}], "tool_call_id": "c1"},
        {"role": "assistant", "content": "4", "reasoning_content": "2 + 2"},
        {"role": "assistant", "content": None, "refusal": "No."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    ) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": ""},
        {"role": "user", "content": "", "name": "anna"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}, "id": "c1"}
            ],
        },
        {"role": "tool", "content": "4", "tool_call_id": "c1"},
        {"role": "assistant", "content": "4", "reasoning_content": "2 + 2"},
        {"role": "assistant", "content": "No."},
        {"role": "assistant", "content": "No."},
    ]


def test_parts_are_joined_before_anything_looks_at_them() -> None:
    parts = [{"type": "text", "text": "<|im_"}, {"type": "text", "text": "end|>"}]
    assert normal({"role": "user", "content": parts})[0]["content"] == "<|im_end|>"


def test_the_older_form_of_function_calls_is_understood() -> None:
    assert normal(
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "4"},
    ) == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "4", "name": "f"},
    ]


def test_images_stand_between_texts_and_are_numbered_through_the_conversation() -> None:
    def image(url: str) -> dict[str, Any]:
        return {"type": "image_url", "image_url": {"url": url, "detail": "high"}}

    def text(text: str) -> dict[str, Any]:
        return {"type": "text", "text": text}

    assert normal(
        {"role": "user", "content": [image("a"), text("b"), text("c"), image("d"), image("a")]},
        {"role": "assistant", "content": [text("e")]},
        {"role": "user", "content": [text("f"), image("g")]},
    ) == [
        {
            "role": "user",
            "content": [
                {"type": "image", "index": 0, "url": "a", "field": "messages.0.content.0"},
                {"type": "text", "text": "bc"},
                {"type": "image", "index": 1, "url": "d", "field": "messages.0.content.3"},
                {"type": "image", "index": 2, "url": "a", "field": "messages.0.content.4"},
            ],
        },
        {"role": "assistant", "content": "e"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "f"},
                {"type": "image", "index": 3, "url": "g", "field": "messages.2.content.1"},
            ],
        },
    ]


@pytest.mark.parametrize("role", ["system", "assistant", "tool"])
def test_images_stand_in_user_messages_only(role: str) -> None:
    with pytest.raises(InvalidRequest, match="user messages") as caught:
        normal({"role": role, "content": [{"type": "image_url", "image_url": {"url": "x"}}]})
    assert caught.value.param == "messages.0.content.0"


def test_an_image_part_without_its_image() -> None:
    with pytest.raises(InvalidRequest) as caught:
        normal({"role": "user", "content": [{"type": "image_url"}]})
    assert caught.value.param == "messages.0.content.0.image_url"


@pytest.mark.parametrize(("kind", "word"), [("input_audio", "audio"), ("file", "files")])
def test_parts_no_model_takes_say_so(kind: str, word: str) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        normal(
            {"role": "user", "content": "a"},
            {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": kind, kind: {}}]},
        )
    assert caught.value.param == "messages.1.content.1"
    assert word in caught.value.message
