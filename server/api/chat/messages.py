"""Chat messages of a request to the plain dicts templates take. Pure.

The parts of a message are put together here, before anything looks for control tokens in them: a token's
text cannot be smuggled in as two halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from server.api.chat.schema import ChatMessage, FunctionCall, Part
from server.errors import InvalidRequest, UnsupportedParameter

# Kinds of parts the API knows and no model served here takes.
_FOREIGN_PARTS = {"image_url": "images", "input_audio": "audio", "file": "files", "video_url": "videos"}
_ROLES = {"developer": "system", "function": "tool"}


def normalised(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Return role and text, and where there are: name, reasoning, calls and the id of the call answered.

    developer becomes system, function (the older form of tool) becomes tool, null content empty text. Raises
    InvalidRequest and UnsupportedParameter with the path of the field.
    """
    return [_normal(message, f"messages.{index}") for index, message in enumerate(messages)]


def _normal(message: ChatMessage, path: str) -> dict[str, Any]:
    normal: dict[str, Any] = {
        "role": _ROLES.get(message.role, message.role),
        "content": _text(message, f"{path}.content"),
    }
    if message.name is not None:
        normal["name"] = message.name
    if message.role == "assistant":
        if message.reasoning_content is not None:
            normal["reasoning_content"] = message.reasoning_content
        calls = [(call.id, call.function) for call in message.tool_calls or ()]
        if message.function_call is not None:
            calls.append((None, message.function_call))
        if calls:
            normal["tool_calls"] = [_call(identity, function) for identity, function in calls]
    elif message.tool_calls:
        raise InvalidRequest(
            f"{path}.tool_calls stands in a message of role {message.role}; only the assistant calls tools",
            f"{path}.tool_calls",
        )
    if message.tool_call_id is not None:
        normal["tool_call_id"] = message.tool_call_id
    return normal


def _call(identity: str | None, function: FunctionCall) -> dict[str, Any]:
    call: dict[str, Any] = {
        "type": "function",
        "function": {
            "name": function.name,
            "arguments": "{}" if function.arguments is None else function.arguments,
        },
    }
    if identity is not None:
        call["id"] = identity
    return call


def _text(message: ChatMessage, path: str) -> str:
    content = message.content
    if content is None:
        return message.refusal or ""
    if isinstance(content, str):
        return content
    return "".join(_part(part, f"{path}.{index}") for index, part in enumerate(content))


def _part(part: Part, path: str) -> str:
    if part.type in _FOREIGN_PARTS:
        raise UnsupportedParameter(
            f"{path} is of type {part.type}, and this model takes no {_FOREIGN_PARTS[part.type]}; "
            "send text, or choose a model with that capability",
            path,
        )
    if part.type not in ("text", "refusal"):
        raise InvalidRequest(f"{path}.type must be 'text', 'refusal' or 'image_url'", f"{path}.type")
    text = part.text if part.type == "text" else part.refusal
    if text is None:
        raise InvalidRequest(f"{path}.{part.type} is required in a part of this type", f"{path}.{part.type}")
    return text
